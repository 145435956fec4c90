// What printing (text.cc) and reading (parse.cc) of the text form have in common.
#pragma once

#include <array>
#include <string_view>

#include "schema/program.h"

namespace pp::text {

inline constexpr std::string_view kSections[] = {"prologue", "body", "epilogue", "evaluation"};
inline constexpr int kBody = 1, kEvaluation = 3;

// The sections of a list, in the order of kSections.
template <typename List>
auto SectionsOf(List& list) {
  return std::array{&list.prologue, &list.body, &list.epilogue, &list.evaluation};
}

// What stands before the field, as a word of its own: the direction of a message.
inline std::string_view WordBefore(Op op, Field field) {
  if (field != Field::kPeer) return "";
  return Info(op).lane == Lane::kSend ? "to" : "from";
}

}  // namespace pp::text
