// The single piece of memory that a rank takes, exactly as large as the plan says. It is filled
// with a pattern that no computation produces, so that one can tell afterwards how much was used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "schema/base/status.h"

namespace pp {

class Arena {
 public:
  // Invalid: the machine does not have this many bytes.
  static Result<Arena> Allocate(int64_t bytes);

  std::byte* at(int64_t offset) const { return base_.get() + offset; }
  int64_t bytes() const { return bytes_; }

  // One past the last byte that was ever written.
  int64_t HighWater() const;

 private:
  struct Unmap {
    size_t bytes;
    void operator()(std::byte* base) const;
  };
  Arena(std::byte* base, int64_t bytes) : base_(base, Unmap{size_t(bytes)}), bytes_(bytes) {}

  std::unique_ptr<std::byte[], Unmap> base_;  // aligned to a page
  int64_t bytes_;
};

}  // namespace pp
