// The threads that help a calling thread with its kernels. They sleep in between.
#pragma once

namespace pp::kernels {

// From now on kernels that this thread calls run on `threads` threads, itself included, until it
// ends or sets another number. Throws std::system_error if the system has no thread left.
void SetThreads(int threads);

// How many a kernel called here may use: 1 where nothing was set, and inside of RunOnThreads.
int Threads();

// Calls f(data, thread) for each thread in [0, threads), with 1 <= threads <= Threads(), thread 0
// being the caller, and returns after the last one has finished.
void RunOnThreads(int threads, void (*f)(void* data, int thread), void* data);

}  // namespace pp::kernels
