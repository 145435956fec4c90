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
#include <cstdio>
#include <vector>

namespace pp {
namespace {

// MPI counts in int: longer transfers go in pieces, one after the other.
constexpr int64_t kPiece = int64_t{1} << 30;

class MpiTransport : public Transport {
 public:
  MpiTransport(int rank, int ranks) : Transport(rank, ranks), transfers_(port_count()) {}

  // With transfers under way the run has failed, and MPI_Finalize might wait for ranks
  // that are gone: the process just ends, which mpiexec takes for the failure that it is.
  ~MpiTransport() override {
    if (broken_) return;
    for (const Transfer& transfer : transfers_)
      if (transfer.busy) return;
    MPI_Finalize();
  }

  Status Start(const Port& port, void* data, int64_t bytes) override {
    if (broken_) return Status::Failed("MPI has failed before");
    Transfer& transfer = transfers_[IndexOf(port)];
    PP_CHECK(!transfer.busy);
    transfer = {MPI_REQUEST_NULL, static_cast<char*>(data), bytes, true};
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

 private:
  struct Transfer {
    MPI_Request request = MPI_REQUEST_NULL;
    char* data = nullptr;
    int64_t left = 0;  // not yet started
    bool busy = false;
  };

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
