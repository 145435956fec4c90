// A device for tests that does everything as late as it may, and in another order with every seed:
// what is submitted runs some time later, on a thread beside, a queue chosen at random making the
// next step; a transfer begins some time after it was started. The bytes of a value that is
// dead, or that has not arrived yet, hold a NaN. So a program that counts on anything but the waits
// it has gets other bits, or stops.
#pragma once

#include <memory>

#include "runtime/run/train.h"

namespace pp {

class LateScheduler;

// The late devices of one run.
class LateDevices {
 public:
  // One thread does all the work, or several where instructions wait for tensor parallel peers: one
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
