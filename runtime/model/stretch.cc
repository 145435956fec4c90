#include "runtime/model/stretch.h"

#include <algorithm>

namespace pp {

std::vector<Stretch> StretchesOf(const Tensor& tensor, const Peer& peer) {
  std::vector<Stretch> stretches;
  for (const Slice& slice : SlicesOf(tensor, peer)) {
    const bool together = slice.cols == slice.row_elements && slice.cols == tensor.cols;
    const int64_t rows = together ? 1 : slice.rows;
    for (int64_t row = 0; row < rows; ++row)
      stretches.push_back({slice.element + row * slice.row_elements, slice.at + row * tensor.cols,
                           together ? slice.rows * slice.cols : slice.cols});
  }
  std::sort(stretches.begin(), stretches.end(),
            [](auto& a, auto& b) { return a.element < b.element; });
  return stretches;
}

std::vector<Stretch> Within(std::vector<Stretch> stretches, int64_t begin, int64_t count) {
  for (Stretch& stretch : stretches) {
    const int64_t first = std::max(stretch.local, begin);
    const int64_t end = std::min(stretch.local + stretch.count, begin + count);
    stretch = {stretch.element + first - stretch.local, first, std::max<int64_t>(0, end - first)};
  }
  std::erase_if(stretches, [](const Stretch& stretch) { return stretch.count == 0; });
  return stretches;
}

}  // namespace pp
