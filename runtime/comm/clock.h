// The time: for measuring, and for how long to wait.
#pragma once

namespace pp {

// Seconds on the steady clock.
double SteadySeconds();

// Seconds in which the caller was awake: however long a machine sleeps or a job is stopped between
// two looks, that counts as a quarter of a second, so that nobody is blamed for it. REQUIRES: while
// it is awake, the caller looks several times a second.
class AwakeClock {
 public:
  // Since the last look.
  double Lap();

 private:
  double last_ = SteadySeconds();
};

// Seconds of processor time that the calling thread has had.
double ThreadSeconds();

}  // namespace pp
