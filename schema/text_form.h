// What printing (text.cc) and reading (parse.cc) of the text form have in common.
#pragma once

#include <array>
#include <string_view>

#include "schema/program.h"

namespace pp::text {

// The sections of a device; the plan's routines follow, by their names.
inline constexpr std::string_view kSections[] = {"prologue", "body", "epilogue"};
inline constexpr int kPrologue = 0, kBody = 1, kEpilogue = 2, kRoutines = 3;

// What stands before the field, as a word of its own: the direction of a message.
inline std::string_view WordBefore(Op op, Field field) {
  if (field != Field::kPeer) return "";
  return Info(op).lane == Lane::kSend ? "to" : "from";
}

}  // namespace pp::text
