// A thread that has nothing to do sleeps on its bell; whoever has news for it rings.
//
//   uint64_t seen = bell.rings();
//   ... look for work; there is none ...
//   bell.Wait(seen);                            // returns immediately if it rang since
//
//   bell.WaitUntil([&] { return is_there; });   // the same, until it is
//
// A bell is two words that the kernel (futex(2)) puts threads to sleep on. They can be in memory
// that processes share, so that one process rings for another. If nobody is asleep, a ring is not a
// system call. A process that dies in its sleep makes later rings slower, nothing worse.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace pp {

struct BellWords {
  std::atomic<uint32_t> rings{0};
  std::atomic<uint32_t> sleepers{0};
};
static_assert(sizeof(BellWords) == 8 && std::atomic<uint32_t>::is_always_lock_free);

class Bell {
 public:
  Bell() = default;
  // A bell whose words others see, too; they must outlive it.
  explicit Bell(BellWords* shared) : words_(shared) {}
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  // Counts modulo 2^32.
  uint64_t rings() const { return words_->rings.load(); }
  BellWords* words() { return words_; }

  void Ring() { Ring(words_); }
  static void Ring(BellWords* words) {
    // One of the two sees the other, because both are in one order with the sleeper's: this sees
    // the sleeper, or the sleeper sees that the bell has rung.
    words->rings.fetch_add(1);
    if (words->sleepers.load() != 0) WakeAll(words);
  }

  void Wait(uint64_t seen) { Sleep(seen, std::chrono::nanoseconds::max()); }
  // Whoever makes `is` true must ring.
  template <typename F>
  void WaitUntil(const F& is) {
    for (uint64_t seen = rings(); !is(); seen = rings()) Wait(seen);
  }
  void WaitFor(uint64_t seen, std::chrono::nanoseconds limit) { Sleep(seen, limit); }

 private:
  static void WakeAll(BellWords* words);
  void Sleep(uint64_t seen, std::chrono::nanoseconds limit);

  BellWords own_;
  BellWords* const words_ = &own_;
};

}  // namespace pp
