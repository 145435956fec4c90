// Where everything in a stage lies.
#pragma once

#include <algorithm>
#include <cstdint>

#include "schema/model/layout.h"

namespace pp {

// Hands out aligned places one after the other.
class Places {
 public:
  explicit Places(int64_t begin = 0) : end_(begin), most_(begin) {}

  // Space for `numbers` elements.
  int64_t Take(int64_t numbers, Dtype dtype = Dtype::kFp32) {
    const int64_t begin = (end_ + kAlign - 1) / kAlign * kAlign;
    end_ = begin + numbers * BytesOf(dtype);
    most_ = std::max(most_, end_);
    return begin;
  }
  // Frees everything taken since `end` was the end.
  void BackTo(int64_t end) { end_ = end; }

  int64_t end() const { return end_; }
  int64_t most() const { return most_; }

 private:
  int64_t end_, most_;
};

// Finds a place for everything that the stage's operators read and write, and the total sizes: all
// fields of *layout after `operators`.
void PlaceOperators(const Job& job, StageLayout* layout);

}  // namespace pp
