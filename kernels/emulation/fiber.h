// Fibers: several stacks on one thread, left and resumed explicitly.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace pp::kernels::cuda::emulation {

// One stack, used for one function after the other. Belongs to the thread that made it.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;

  // A new function; what the previous one had on the stack is gone. It remains the caller's.
  void Begin(const std::function<void()>* function);
  // Resumes it until it leaves or ends.
  void Enter();
  // From inside: continues where Enter was called.
  void Leave();
  // The same as if `next` were then entered there.
  void LeaveTo(Fiber& next);
  bool ended() const { return ended_; }

 private:
  static void Run();

  std::byte* stack_ = nullptr;
  void* inside_ = nullptr;   // stack pointer of the fiber while it is left
  void* outside_ = nullptr;  // and that of its caller while it runs
  const std::function<void()>* function_ = nullptr;
  bool ended_ = true;
};

}  // namespace pp::kernels::cuda::emulation
