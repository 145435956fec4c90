// Which version the programs are, and which plans they write and read.
#pragma once

#include <cstdint>

namespace pp {

inline constexpr const char* kVersion = "1.0";
inline constexpr uint32_t kPlanFormat = 6, kOldestFormat = 3;

}  // namespace pp
