#include "kernels/block/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <exception>
#include <new>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

// Saves the registers that a function must preserve (System V ABI for x86-64) on the stack, the
// stack pointer in *from, and continues with what was saved at `to`.
extern "C" void PipeSwitchStack(void** from, void* to);
asm(R"(
.text
.globl PipeSwitchStack
.type PipeSwitchStack, @function
PipeSwitchStack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size PipeSwitchStack, . - PipeSwitchStack
)");

namespace pp::kernels::cuda::emulation {
namespace {

constexpr size_t kStackBytes = 64 * 1024;
constexpr int kColours = 32;
constexpr size_t kColourBytes = 512 + 64;
constexpr int kSaved = 6;  // registers

thread_local Fiber* entered = nullptr;

}  // namespace

Fiber::Fiber(int number, const std::function<void()>& function) : function_(function) {
  void* stack =
      mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stack == MAP_FAILED) throw std::bad_alloc();
  stack_ = static_cast<std::byte*>(stack);
  top_ = stack_ + kStackBytes - number % kColours * kColourBytes;
}

Fiber::~Fiber() { munmap(stack_, kStackBytes); }

void Fiber::Begin() {
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(stack_, kStackBytes);
#endif
  // As if Run had just been called: its return address, never used, is at the stack's end.
  auto* top = reinterpret_cast<void**>(top_) - 1;
  *top = nullptr;
  *--top = reinterpret_cast<void*>(&Fiber::Run);
  inside_ = top - kSaved;
}

void Fiber::Run() {
  entered->function_();
  std::terminate();
}

void Fiber::Enter() {
  entered = this;
  PipeSwitchStack(&outside_, inside_);
}

void Fiber::Leave() { PipeSwitchStack(&inside_, outside_); }

void Fiber::LeaveTo(Fiber& next) {
  next.outside_ = outside_;
  entered = &next;
  PipeSwitchStack(&inside_, next.inside_);
}

}  // namespace pp::kernels::cuda::emulation
