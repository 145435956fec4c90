// Messages go through MPI.
//
// MPI waits by spinning, which is a catastrophe with more ranks than cores (a blocking 8-byte
// all-reduce of 4 ranks on 2 cores takes 10 ms). So nothing here blocks: only Issend, Irecv and
// Test, and the caller decides how to pass the time in between. Issend, because a buffered send
// would hide what another transport exposes.
#include "runtime/comm/mpi_transport.h"

#include <fmt/format.h>
#include <mpi.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/comm/clock.h"

namespace pp {
namespace {

// MPI counts in int: longer transfers go in pieces, one after the other.
constexpr int64_t kPiece = int64_t{1} << 30;

// How long the ranks have to end together, if nobody has said how long.
constexpr double kSettleSeconds = 3;

class MpiTransport : public Transport {
 public:
  MpiTransport(int rank, int ranks, std::vector<int> peers)
      : Transport(rank, ranks), peers_(std::move(peers)), transfers_(port_count()) {}

  // MPI shuts down cleanly only when nothing is under way, on any rank. If a rank does not answer,
  // the process just exits, which mpiexec treats as the failure that it is.
  ~MpiTransport() override {
    Settle(kSettleSeconds);
    if (!broken_ && AllAreHere()) LeaveMpi();
  }

  Status Start(const Port& port, void* data, int64_t bytes) override {
    if (broken_) return Status::Failed("MPI has failed before");
    Transfer& transfer = transfers_[IndexOf(port)];
    PP_CHECK(!transfer.busy);
    transfer = {MPI_REQUEST_NULL, static_cast<char*>(data), bytes, bytes, transfer.count + 1, true};
    return StartPiece(port, &transfer);
  }

  Status Test(const Port& port, bool* over) override {
    Transfer& transfer = transfers_[IndexOf(port)];
    if (broken_) return Status::Failed("MPI has failed before");
    PP_CHECK(transfer.busy);
    int done = 0;
    *over = false;
    PP_RETURN_IF_ERROR(Check(MPI_Test(&transfer.request, &done, MPI_STATUS_IGNORE), port));
    if (!done) return {};
    if (transfer.left > 0) return StartPiece(port, &transfer);
    transfer.busy = false;
    *over = true;
    return {};
  }

  bool polls() const override { return !peers_.empty(); }

  // Every send without a receive gets one, and vice versa; the bytes are discarded.
  void Settle(double seconds) override {
    if (std::exchange(settled_, true) || broken_) return;
    left_seconds_ = seconds;
    broken_ = !Drain();
  }

 private:
  struct Transfer {
    MPI_Request request = MPI_REQUEST_NULL;
    char* data = nullptr;
    int64_t left = 0;   // not yet started
    int64_t bytes = 0;  // in total
    int64_t count = 0;  // transfers so far, including this one
    bool busy = false;
  };

  // What one rank has started with another, by direction and channel. A transfer starts when the
  // previous one is over at both ends, so one rank is at most one ahead.
  struct Started {
    int64_t count[2][kChannels];
    int64_t bytes[2][kChannels];  // of the last one
  };

  // False: not all ranks took part in time.
  bool Drain() {
    std::vector<Started> mine(ranks()), theirs(ranks());
    std::vector<MPI_Request> requests;
    for (int peer : peers_) {
      mine[peer] = StartedWith(peer);
      MPI_Irecv(&theirs[peer], sizeof(Started), MPI_BYTE, peer, kChannels, MPI_COMM_WORLD,
                &requests.emplace_back());
      MPI_Isend(&mine[peer], sizeof(Started), MPI_BYTE, peer, kChannels, MPI_COMM_WORLD,
                &requests.emplace_back());
    }
    auto all_told = [&] {
      int done = 0;
      MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
      return done != 0;
    };
    if (!Poll(all_told)) return false;
    std::vector<std::vector<char>> nowhere;
    for (const Port& port : AllPorts()) {
      const int other_way = 1 - static_cast<int>(port.way),
                channel = static_cast<int>(port.channel);
      if (theirs[port.peer].count[other_way][channel] <= transfers_[IndexOf(port)].count) continue;
      if (!Poll([&] { return Over(port); })) return false;
      nowhere.emplace_back(theirs[port.peer].bytes[other_way][channel]);
      if (!Start(port, nowhere.back().data(), nowhere.back().size()).ok()) return false;
    }
    for (const Port& port : AllPorts())
      if (!Poll([&] { return Over(port); })) return false;
    return true;
  }

  // All ranks have reached their ends: nobody is about to start a transfer any more.
  bool AllAreHere() {
    MPI_Request barrier = MPI_REQUEST_NULL;
    if (MPI_Ibarrier(MPI_COMM_WORLD, &barrier) != MPI_SUCCESS) return false;
    auto done = [&] {
      int all = 0;
      MPI_Test(&barrier, &all, MPI_STATUS_IGNORE);
      return all != 0;
    };
    return Poll(done);
  }

  Started StartedWith(int peer) const {
    Started started{};
    for (const Port& port : AllPorts()) {
      if (port.peer != peer) continue;
      const Transfer& transfer = transfers_[IndexOf(port)];
      started.count[static_cast<int>(port.way)][static_cast<int>(port.channel)] = transfer.count;
      started.bytes[static_cast<int>(port.way)][static_cast<int>(port.channel)] = transfer.bytes;
    }
    return started;
  }

  std::vector<Port> AllPorts() const {
    std::vector<Port> ports;
    for (const Way way : {Way::kSend, Way::kRecv})
      for (int channel = 0; channel < kChannels; ++channel)
        for (int peer : peers_) ports.push_back({way, static_cast<Channel>(channel), peer});
    return ports;
  }

  bool Over(const Port& port) {
    bool over = !transfers_[IndexOf(port)].busy;
    return over || (Test(port, &over).ok() && over);
  }

  template <typename Done>
  bool Poll(const Done& done) {
    AwakeClock clock;
    while (!done()) {
      left_seconds_ -= clock.Lap();
      if (broken_ || left_seconds_ < 0) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return !broken_;
  }

  Status StartPiece(const Port& port, Transfer* transfer) {
    const int bytes = static_cast<int>(std::min(transfer->left, kPiece));
    const int tag = static_cast<int>(port.channel);
    const int error = port.way == Way::kSend
                          ? MPI_Issend(transfer->data, bytes, MPI_BYTE, port.peer, tag,
                                       MPI_COMM_WORLD, &transfer->request)
                          : MPI_Irecv(transfer->data, bytes, MPI_BYTE, port.peer, tag,
                                      MPI_COMM_WORLD, &transfer->request);
    transfer->data += bytes;
    transfer->left -= bytes;
    return Check(error, port);
  }

  Status Check(int error, const Port& port) {
    if (error == MPI_SUCCESS) return {};
    broken_ = true;
    // The text of an error has several lines, that of its class has one.
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0, error_class = error;
    MPI_Error_class(error, &error_class);
    MPI_Error_string(error_class, text, &length);
    return Status::Failed(fmt::format("rank {}: MPI, with rank {}: {}", rank(), port.peer, text));
  }

  const std::vector<int> peers_;
  std::vector<Transfer> transfers_;
  bool broken_ = false;
  bool settled_ = false;
  double left_seconds_ = kSettleSeconds;  // for all ranks to end together
};

}  // namespace

void LeaveMpi() {
  const char* manager = std::getenv("PMI_FD");
  const int connection = manager == nullptr ? 0 : std::atoi(manager);
  constexpr std::string_view kFinalize = "cmd=finalize\n";
  if (connection <= 0 || write(connection, kFinalize.data(), kFinalize.size()) !=
                             static_cast<ssize_t>(kFinalize.size())) {
    MPI_Finalize();
    return;
  }
  // Its answer, which is not worth a long wait. (A process that may open no file cannot poll.)
  pollfd answer{.fd = connection, .events = POLLIN, .revents = 0};
  const int polled = poll(&answer, 1, 1000);
  char text[64];
  if ((polled > 0 || (polled < 0 && errno == EINVAL)) && read(connection, text, sizeof text) < 0) {
    // It has gone before us.
  }
}

std::unique_ptr<Transport> MakeMpiTransport(int rank, int ranks, std::vector<int> peers) {
  return std::make_unique<MpiTransport>(rank, ranks, std::move(peers));
}

}  // namespace pp
