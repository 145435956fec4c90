// Numbers that each device has anew, without an array for each of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pp::play {

// key -> a number of the device that was asked for last; -1 at first. REQUIRES: devices are asked
// for one after the other.
class PerDevice {
 public:
  explicit PerDevice(size_t keys) : slots_(keys) {}
  int32_t& Of(int device, size_t key) {
    Slot& slot = slots_[key];
    if (slot.device != device) slot = {device, -1};
    return slot.number;
  }

 private:
  struct Slot {
    int32_t device = -1, number = -1;
  };
  std::vector<Slot> slots_;
};

}  // namespace pp::play
