// Fibers: several stacks on one thread, left and resumed explicitly.
#pragma once

#include <cstddef>
#include <functional>

namespace pp::kernels::cuda::emulation {

// One stack, on which a function runs again and again. Belongs to the thread that made it.
class Fiber {
 public:
  // Stacks of different numbers are in different sets of a cache. The function remains the
  // caller's. Its last call is to Leave.
  Fiber(int number, const std::function<void()>& function);
  ~Fiber();
  Fiber(const Fiber&) = delete;

  // Anew; what the previous run had on the stack is gone.
  void Begin();
  // Resumes it until it leaves.
  void Enter();
  // From inside: continues where Enter was called.
  void Leave();
  // The same as if `next` were then entered there.
  void LeaveTo(Fiber& next);

 private:
  static void Run();

  const std::function<void()>& function_;
  std::byte* stack_ = nullptr;
  std::byte* top_ = nullptr;
  void* inside_ = nullptr;   // stack pointer of the fiber while it is left
  void* outside_ = nullptr;  // and that of its caller while it runs
};

}  // namespace pp::kernels::cuda::emulation
