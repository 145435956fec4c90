// What saving and the end of a run need is held from the start, as a machine may have nothing left
// by then: memory, and numbers for files. (Threads: comm/worker.h; shared memory:
// Transport::Reserve.)
#pragma once

#include <cstdint>
#include <vector>

namespace pp {

// Before all else: memory that is freed stays with this process, whichever thread has had it.
void KeepFreedMemory();
// Takes so much and frees it. Throws std::bad_alloc.
void HoldMemory(int64_t bytes);

// Low numbers: those that a process may use although its limit is lowered later on.
class SpareDescriptors {
 public:
  SpareDescriptors();
  ~SpareDescriptors() { Release(); }
  SpareDescriptors(const SpareDescriptors&) = delete;
  SpareDescriptors& operator=(const SpareDescriptors&) = delete;

  // What is opened for good is open: now they are free for files that are open for a while.
  void Release();

 private:
  std::vector<int> descriptors_;
};

}  // namespace pp
