// What a checkpoint's files have in common: each ends with a checksum, and may be damaged.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "schema/base/disk.h"
#include "schema/base/status.h"

namespace pp {

inline constexpr int64_t kMostText = int64_t{1} << 30;  // bytes of a footer or a manifest

// XXH3.
uint64_t SumOf(const void* data, int64_t bytes);

// A part of a checkpoint, for reading. Invalid: it is missing. Failed: it is there and cannot be
// opened, which says nothing about its contents.
Result<InputFile> OpenPart(const std::string& path, const std::string& right);

// `read` checks that the JSON is as this program writes it: it throws if not.
template <typename F>
bool Reads(const F& read) {
  try {
    read();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

}  // namespace pp
