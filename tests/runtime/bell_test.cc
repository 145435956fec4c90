#include "runtime/comm/bell.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <new>
#include <thread>

namespace pp {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

TEST_CASE("a bell that rang since does not let anybody sleep") {
  Bell bell;
  const uint64_t seen = bell.rings();
  bell.Ring();
  bell.Wait(seen);
  bell.WaitFor(seen, std::chrono::hours(1));
  CHECK(bell.rings() != seen);
}

TEST_CASE("a sleeper wakes at the end of its time") {
  Bell bell;
  const auto start = Clock::now();
  bell.WaitFor(bell.rings(), milliseconds(20));
  CHECK(Clock::now() - start >= milliseconds(20));
  bell.WaitFor(bell.rings(), milliseconds(-1));
}

// Two threads hand a number back and forth; a lost ring would let both sleep forever.
void PingPong(Bell* mine, Bell* other, std::atomic<int>* number, int first) {
  for (int i = first; i < 20000; i += 2) {
    while (true) {
      const uint64_t seen = mine->rings();
      if (number->load() == i) break;
      mine->Wait(seen);
    }
    number->store(i + 1);
    other->Ring();
  }
}

TEST_CASE("no ring is lost between threads") {
  Bell bells[2];
  std::atomic<int> number{0};
  std::thread other([&] { PingPong(&bells[1], &bells[0], &number, 1); });
  PingPong(&bells[0], &bells[1], &number, 0);
  other.join();
  CHECK(number.load() == 20000);
}

TEST_CASE("no ring is lost between processes") {
  struct Shared {
    BellWords words[2];
    std::atomic<int> number{0};
  };
  void* memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  auto* shared = new (memory) Shared;
  Bell here(&shared->words[0]), there(&shared->words[1]);
  const pid_t child = fork();
  if (child == 0) {
    PingPong(&there, &here, &shared->number, 1);
    _exit(0);
  }
  PingPong(&here, &there, &shared->number, 0);
  int status = 1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(shared->number.load() == 20000);
  munmap(memory, sizeof(Shared));
}

TEST_CASE("a ring wakes all who sleep") {
  Bell bell;
  std::atomic<bool> go{false};
  auto sleep = [&] {
    while (true) {
      const uint64_t seen = bell.rings();
      if (go.load()) return;
      bell.Wait(seen);
    }
  };
  std::thread one(sleep), two(sleep);
  while (bell.words()->sleepers.load() < 2) std::this_thread::yield();
  std::this_thread::sleep_for(milliseconds(50));  // until the kernel has put them to sleep, too
  go.store(true);
  bell.Ring();
  one.join();
  two.join();
}

}  // namespace
}  // namespace pp
