// The time: for measuring, and for how long to wait.
#pragma once

namespace pp {

// Seconds on the steady clock.
double SteadySeconds();

// Seconds of processor time that the calling thread has had.
double ThreadSeconds();

}  // namespace pp
