// The plugin: ranks are processes, and messages go through MPI.
//
// MPI waits by spinning, which is a catastrophe with more ranks than cores (a blocking
// 8-byte all-reduce of 4 ranks on 2 cores takes 10 ms). So nothing here blocks: only
// Issend, Irecv and Test, and the caller decides how to pass the time in between.
// Issend, because a buffered send would hide what another transport shows.
#include "runtime/mpi_transport.h"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>
#include <vector>

namespace pp {
namespace {

// MPI counts in int: longer transfers go in pieces, one after the other.
constexpr int64_t kPiece = int64_t{1} << 30;

// How long the ranks have for ending together.
constexpr std::chrono::seconds kDrainTime{5};

class MpiTransport : public Transport {
 public:
  MpiTransport(int rank, int ranks) : Transport(rank, ranks), transfers_(port_count()) {}

  // MPI ends in order only when nothing is under way, on any rank. Where a rank does not
  // answer the process just ends, which mpiexec takes for the failure that it is.
  ~MpiTransport() override {
    Settle();
    if (!broken_) MPI_Finalize();
  }

  Status Start(const Port& port, void* data, int64_t bytes) override {
    if (broken_) return Status::Failed("MPI has failed before");
    Transfer& transfer = transfers_[IndexOf(port)];
    PP_CHECK(!transfer.busy);
    transfer = {MPI_REQUEST_NULL, static_cast<char*>(data), bytes, bytes, true};
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

  bool polls() const override { return true; }

  // Every send without a receive gets one, and the other way round; the bytes go nowhere.
  void Settle() override {
    if (!std::exchange(settled_, true) && !broken_) broken_ = !Drain();
  }

 private:
  struct Transfer {
    MPI_Request request = MPI_REQUEST_NULL;
    char* data = nullptr;
    int64_t left = 0;   // not yet started
    int64_t bytes = 0;  // in all
    bool busy = false;
  };

  // What one rank still has under way with another.
  struct Pending {
    int64_t bytes[2][kChannels];  // by way and channel; -1: nothing
  };

  // False: not all ranks took part in time.
  bool Drain() {
    const auto end = std::chrono::steady_clock::now() + kDrainTime;
    std::vector<Pending> mine(ranks()), theirs(ranks());
    std::vector<MPI_Request> requests;
    for (int peer = 0; peer < ranks(); ++peer) {
      if (peer == rank()) continue;
      mine[peer] = PendingWith(peer);
      MPI_Irecv(&theirs[peer], sizeof(Pending), MPI_BYTE, peer, kChannels, MPI_COMM_WORLD,
                &requests.emplace_back());
      MPI_Isend(&mine[peer], sizeof(Pending), MPI_BYTE, peer, kChannels, MPI_COMM_WORLD,
                &requests.emplace_back());
    }
    auto all_told = [&] {
      int done = 0;
      MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
      return done != 0;
    };
    if (!Poll(all_told, end)) return false;
    std::vector<std::vector<char>> nowhere;
    for (int peer = 0; peer < ranks(); ++peer)
      if (peer != rank()) Match(peer, theirs[peer], &nowhere);
    return Poll([&] { return AllOver(); }, end);
  }

  Pending PendingWith(int peer) const {
    Pending pending;
    for (const Way way : {Way::kSend, Way::kRecv})
      for (int channel = 0; channel < kChannels; ++channel) {
        const Transfer& transfer = transfers_[IndexOf({way, static_cast<Channel>(channel), peer})];
        pending.bytes[static_cast<int>(way)][channel] = transfer.busy ? transfer.bytes : -1;
      }
    return pending;
  }

  void Match(int peer, const Pending& theirs, std::vector<std::vector<char>>* nowhere) {
    for (const Way way : {Way::kSend, Way::kRecv})
      for (int channel = 0; channel < kChannels; ++channel) {
        const Port port{way, static_cast<Channel>(channel), peer};
        const int other_way = 1 - static_cast<int>(way);
        const int64_t bytes = theirs.bytes[other_way][channel];
        if (bytes < 0 || transfers_[IndexOf(port)].busy) continue;
        nowhere->emplace_back(bytes);
        if (!Start(port, nowhere->back().data(), bytes).ok()) return;
      }
  }

  bool AllOver() {
    bool all = true;
    for (const Way way : {Way::kSend, Way::kRecv})
      for (int channel = 0; channel < kChannels; ++channel)
        for (int peer = 0; peer < ranks(); ++peer) {
          const Port port{way, static_cast<Channel>(channel), peer};
          bool over = !transfers_[IndexOf(port)].busy;
          if (!over && !Test(port, &over).ok()) return false;
          all = all && over;
        }
    return all;
  }

  template <typename Done>
  bool Poll(const Done& done, std::chrono::steady_clock::time_point end) {
    while (!done()) {
      if (broken_ || std::chrono::steady_clock::now() > end) return false;
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

  std::vector<Transfer> transfers_;
  bool broken_ = false;
  bool settled_ = false;
};

}  // namespace
}  // namespace pp

extern "C" pp::Transport* pp_make_mpi_transport(char* error, int error_bytes) {
  // One thread at a time calls MPI, but not always the same one.
  int provided = MPI_THREAD_SINGLE, rank = 0, ranks = 1;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) {
    std::snprintf(error, error_bytes, "MPI_Init_thread failed");
    return nullptr;
  }
  if (provided < MPI_THREAD_SERIALIZED) {
    std::snprintf(error, error_bytes, "this MPI does not allow MPI_THREAD_SERIALIZED");
    MPI_Finalize();
    return nullptr;
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  return new pp::MpiTransport(rank, ranks);
}
