// The tensor-parallel peers of a rank, as the operators of a stage see them: within an instruction
// they combine the parts that each of them has.
#pragma once

#include <cstdint>

#include "schema/model/layout.h"

namespace pp {

class Peers {
 public:
  virtual ~Peers() = default;

  // Begins one of PeerExchanges. Sums are taken in the order of the peers, with the same bits on
  // all of them. `data` must not be touched before Wait. All peers call in the same order, one at a
  // time.
  virtual void Start(const PeerExchange& what, void* data) = 0;
  // Returns when it is over, or when the run is stopped.
  virtual void Wait() = 0;
  // The run is stopped: the result waited for last may be missing.
  virtual bool stopped() const { return false; }
};

}  // namespace pp
