// The tensor parallel peers of a rank, as the operators of a stage see them: inside of an
// instruction they put together what each has a part of.
#pragma once

#include <cstdint>

#include "schema/model/layout.h"

namespace pp {

class Peers {
 public:
  virtual ~Peers() = default;

  // Begins one of PeerExchanges. Sums are taken in the order of the peers, the
  // same bits on all of them. Nobody touches `data` before Wait. All peers call in the same order,
  // one at a time.
  virtual void Start(const PeerExchange& what, void* data) = 0;
  // Returns when it is over, or when the run is stopped.
  virtual void Wait() = 0;
  // The run is stopped: what was waited for last may not be there.
  virtual bool stopped() const { return false; }
};

}  // namespace pp
