// One rank of the transport benchmark: transport_bench_main DIRECTORY-OF-THE-LIBRARY WAY, where
// WAY is shm, mpi (it tests and naps, as a rank that waits does) or mpi-yield (no naps).
// Rank 0 prints a line: the microseconds of a ping-pong (there and back) between ranks 0 and 1, and
// of one round of a ring, each for 8 bytes and for 1.5 MB.
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "runtime/comm/mpi_plugin.h"

namespace pp {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kLarge = 1500000;
constexpr double kSeconds = 0.2;  // minimum duration of one measurement's rounds
constexpr int kRepeat = 3;

class Bench {
 public:
  Bench(Transport& transport, bool naps) : transport_(transport), naps_(naps) {}

  Status Run(const std::string& way) {
    std::string line = fmt::format("{:10} {:3}", way, transport_.ranks());
    for (auto round : {&Bench::PingPong, &Bench::Ring})
      for (const int64_t bytes : {int64_t{8}, kLarge}) {
        double seconds = 0;
        PP_RETURN_IF_ERROR(Measure(round, bytes, &seconds));
        line += fmt::format(" {:12.1f}", 1e6 * seconds);
      }
    if (transport_.rank() == 0) std::puts(line.c_str());
    return {};
  }

 private:
  using Round = Status (Bench::*)(int64_t bytes);

  // The best of a few, each with enough rounds to take long enough.
  Status Measure(Round round, int64_t bytes, double* best) {
    int64_t rounds = 1;
    for (int repeat = 0; repeat < kRepeat;) {
      PP_RETURN_IF_ERROR(TellAll(&rounds));
      const auto start = Clock::now();
      for (int64_t i = 0; i < rounds; ++i) PP_RETURN_IF_ERROR((this->*round)(bytes));
      double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      PP_RETURN_IF_ERROR(TellAll(&seconds));
      if (seconds < kSeconds) {
        rounds *= 2;
        continue;
      }
      seconds /= static_cast<double>(rounds);
      *best = repeat++ == 0 ? seconds : std::min(*best, seconds);
    }
    return {};
  }

  template <typename Number>
  Status TellAll(Number* number) {
    const Way way = transport_.rank() == 0 ? Way::kSend : Way::kRecv;
    for (int peer = 0; peer < transport_.ranks(); ++peer)
      if ((transport_.rank() == 0) != (peer == 0))
        PP_RETURN_IF_ERROR(Finish({{way, Channel::kControl, peer}}, number, sizeof *number));
    return {};
  }

  Status PingPong(int64_t bytes) {
    const int rank = transport_.rank();
    if (rank > 1) return {};
    const Port send{Way::kSend, Channel::kAct, 1 - rank};
    const Port receive{Way::kRecv, Channel::kAct, 1 - rank};
    PP_RETURN_IF_ERROR(Finish({rank == 0 ? send : receive}, in_.data(), bytes));
    return Finish({rank == 0 ? receive : send}, in_.data(), bytes);
  }

  Status Ring(int64_t bytes) {
    const int rank = transport_.rank(), ranks = transport_.ranks();
    const Port send{Way::kSend, Channel::kAct, (rank + 1) % ranks};
    const Port receive{Way::kRecv, Channel::kAct, (rank + ranks - 1) % ranks};
    PP_RETURN_IF_ERROR(transport_.Start(send, out_.data(), bytes));
    return Finish({receive, send}, in_.data(), bytes);
  }

  // Starts the first port and finishes all.
  Status Finish(std::vector<Port> ports, void* data, int64_t bytes) {
    PP_RETURN_IF_ERROR(transport_.Start(ports[0], data, bytes));
    for (int quiet = 0; !ports.empty(); ++quiet) {
      const uint64_t seen = transport_.bell().rings();
      const auto left = std::remove_if(ports.begin(), ports.end(), [&](const Port& port) {
        bool over = false;
        return transport_.Test(port, &over).ok() && over;
      });
      if (left != ports.end()) {
        ports.erase(left, ports.end());
      } else if (!transport_.polls()) {
        transport_.bell().Wait(seen);
      } else if (!naps_ || quiet < 5) {
        sched_yield();
      } else {
        transport_.bell().WaitFor(seen, std::chrono::microseconds(60));
      }
    }
    return {};
  }

  Transport& transport_;
  const bool naps_;
  std::vector<char> out_ = std::vector<char>(kLarge), in_ = std::vector<char>(kLarge);
};

Status Run(const std::string& directory, const std::string& way) {
  const Joined joined =
      JoinMpi(directory, {way == "shm" ? InsideHost::kSharedMemory : InsideHost::kMpi, Status()});
  PP_RETURN_IF_ERROR(joined.status);
  return Bench(*joined.transport, way != "mpi-yield").Run(way);
}

}  // namespace
}  // namespace pp

int main(int, char** argv) {
  const pp::Status status = pp::Run(argv[1], argv[2]);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return static_cast<int>(status.code());
}
