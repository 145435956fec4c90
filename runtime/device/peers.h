// The tensor parallel peers of a rank, as the operators of a stage see them: inside of an
// instruction they add up what each has a part of.
#pragma once

#include <cstdint>

namespace pp {

class Peers {
 public:
  virtual ~Peers() = default;

  // Begins: data[i] becomes the sum of all peers' data[i], taken in their order, the same bits on
  // all of them. `n` is one of PeerSums (schema/model/layout.h). Nobody touches `data` before
  // Wait. All peers call in the same order; one sum at a time.
  virtual void StartSum(float* data, int64_t n) = 0;
  // Returns when it is over, or when the run is stopped.
  virtual void Wait() = 0;
};

}  // namespace pp
