// A device for tests that does everything as late as it is allowed to, and in a different order
// with every seed: what is submitted runs some time later, on another thread, with a queue chosen
// at random making the next step; a transfer begins some time after it was started. The bytes of a
// value that is dead, or has not arrived yet, hold a NaN. So a program that relies on anything but
// its waits gets other bits, or stops.
#pragma once

#include <memory>

#include "runtime/run/train.h"

namespace pp {

class LateScheduler;

// The late devices of one run.
class LateDevices {
 public:
  // One thread does all the work, or several if instructions wait for tensor-parallel peers: one
  // more than there are ranks.
  explicit LateDevices(unsigned seed, int threads = 1);
  ~LateDevices();

  // Sets make_device and wrap_transport. REQUIRES: this outlives the run.
  void AddTo(TrainOptions* options) const;

 private:
  const unsigned seed_;
  std::unique_ptr<LateScheduler> scheduler_;
};

}  // namespace pp
