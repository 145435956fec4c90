#include "kernels/threads.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace pp::kernels {
namespace {

// How often a thread polls before it sleeps. The next kernel often comes within microseconds; a
// thread that spins longer takes the core from those that it waits for.
constexpr int kLooks = 200;

template <typename T>
void WaitWhile(const std::atomic<T>& value, T old) {
  for (int i = 0; i < kLooks; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  value.wait(old, std::memory_order_acquire);
}

class Helpers {
 public:
  explicit Helpers(int count) {
    try {
      for (int thread = 1; thread <= count; ++thread)
        threads_.emplace_back([this, thread] { Main(thread); });
    } catch (...) {
      End();
      throw;
    }
  }
  ~Helpers() { End(); }

  int count() const { return static_cast<int>(threads_.size()); }
  bool running() const { return running_; }

  void Run(int threads, void (*f)(void*, int), void* data) {
    running_ = true;
    work_ = {f, data, threads};
    busy_.store(count(), std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    f(data, 0);
    for (int busy; (busy = busy_.load(std::memory_order_acquire)) != 0;) WaitWhile(busy_, busy);
    running_ = false;
  }

 private:
  struct Work {
    void (*f)(void*, int) = nullptr;  // null: the end
    void* data = nullptr;
    int threads = 0;
  };

  void Main(int thread) {
    for (unsigned round = 0;; ++round) {
      WaitWhile(round_, round);
      if (work_.f == nullptr) return;
      if (thread < work_.threads) work_.f(work_.data, thread);
      if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_one();
    }
  }

  void End() {
    work_ = {};
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  bool running_ = false;
  Work work_;
  alignas(64) std::atomic<unsigned> round_{0};
  alignas(64) std::atomic<int> busy_{0};
  std::vector<std::thread> threads_;
};

// Of the calling thread. Null if it has none: looking allocates no memory.
thread_local Helpers* helpers = nullptr;

}  // namespace

void SetThreads(int threads) {
  thread_local std::unique_ptr<Helpers> own;
  if (threads == (own ? own->count() : 0) + 1) return;
  helpers = nullptr;
  own.reset();
  if (threads > 1) own = std::make_unique<Helpers>(threads - 1);
  helpers = own.get();
}

int Threads() { return helpers != nullptr && !helpers->running() ? helpers->count() + 1 : 1; }

void RunOnThreads(int threads, void (*f)(void*, int), void* data) {
  if (threads <= 1) return f(data, 0);
  helpers->Run(threads, f, data);
}

}  // namespace pp::kernels
