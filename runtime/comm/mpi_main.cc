// The plugin: joins the ranks that mpiexec has started.
//
// MPI starts them, says who is on which host, and carries the name of the memory that the ranks of
// a host share. All but one of its calls here wait by spinning.
#include <mpi.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <vector>

#include "runtime/comm/mpi_plugin.h"
#include "runtime/comm/mpi_transport.h"
#include "runtime/comm/routed_transport.h"
#include "runtime/comm/shm_transport.h"

namespace pp {
namespace {

constexpr int kTextBytes = 512;

void Copy(const std::string& text, char* to) {
  const size_t length = std::min<size_t>(text.size(), kTextBytes - 1);
  std::memcpy(to, text.data(), length);
  to[length] = 0;
}

// All ranks leave with the error of the first one that has one.
Status TellAll(const Status& status, int rank) {
  int first = status.ok() ? INT_MAX : rank;
  MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (first == INT_MAX) return {};
  char text[kTextBytes] = {};
  int code = static_cast<int>(status.code());
  Copy(status.message(), text);
  MPI_Bcast(&code, 1, MPI_INT, first, MPI_COMM_WORLD);
  MPI_Bcast(text, kTextBytes, MPI_BYTE, first, MPI_COMM_WORLD);
  return code == static_cast<int>(Code::kInvalid) ? Status::Invalid(text) : Status::Failed(text);
}

// Whether all ranks carry messages inside a host in the same way.
Status SameInside(InsideHost inside) {
  int least_and_most[2] = {static_cast<int>(inside), -static_cast<int>(inside)};
  MPI_Allreduce(MPI_IN_PLACE, least_and_most, 2, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (least_and_most[0] == -least_and_most[1]) return {};
  return Status::Invalid("--transport: not the same on all ranks (the same on all ranks)");
}

// The segment of this host; all its ranks have opened it when this returns.
Result<std::shared_ptr<ShmSegment>> ShareMemory(MPI_Comm host, int rank, int members) {
  int member = 0;
  MPI_Comm_rank(host, &member);
  Result<std::shared_ptr<ShmSegment>> segment = Status();
  char name[kTextBytes] = {};  // empty: it could not be created
  if (member == 0) {
    segment = ShmSegment::Create(members);
    if (segment.ok()) Copy((*segment)->name(), name);
  }
  MPI_Bcast(name, kTextBytes, MPI_BYTE, 0, host);
  if (member != 0 && name[0] != 0) segment = ShmSegment::Open(name);
  PP_RETURN_IF_ERROR(TellAll(segment.status(), rank));
  if (member == 0) (*segment)->Unlink();
  return segment;
}

// What ranks are started, watched and ended with: a star around rank 0.
std::vector<Port> StarPorts(const std::vector<int>& here, int rank) {
  std::vector<Port> ports;
  for (const int peer : here)
    if (peer != rank && (rank == 0 || peer == 0))
      for (const Channel channel : {Channel::kControl, Channel::kPhase})
        ports.push_back({Way::kSend, channel, peer});
  return ports;
}

Result<std::unique_ptr<Transport>> Join(const JoinMpiArgs& args) {
  int rank = 0, ranks = 1, members = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  PP_RETURN_IF_ERROR(TellAll(args.status, rank));
  PP_RETURN_IF_ERROR(SameInside(args.inside));
  std::vector<int> here{rank}, elsewhere;
  std::shared_ptr<ShmSegment> segment;
  if (args.inside == InsideHost::kSharedMemory) {
    MPI_Comm host = MPI_COMM_NULL;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host);
    MPI_Comm_size(host, &members);
    here.resize(members);
    MPI_Allgather(&rank, 1, MPI_INT, here.data(), 1, MPI_INT, host);
    auto shared = ShareMemory(host, rank, members);
    PP_RETURN_IF_ERROR(shared.status());
    segment = std::move(*shared);
    MPI_Comm_free(&host);
  }
  for (int peer = 0; peer < ranks; ++peer)
    if (std::find(here.begin(), here.end(), peer) == here.end()) elsewhere.push_back(peer);
  if (!segment) return MakeMpiTransport(rank, ranks, std::move(elsewhere));
  auto near = MakeShmTransport({std::move(segment), rank, ranks, here});
  PP_RETURN_IF_ERROR(TellAll(near->Reserve(StarPorts(here, rank)), rank));
  return MakeRoutedTransport(std::move(near), MakeMpiTransport(rank, ranks, std::move(elsewhere)),
                             here);
}

// One thread at a time calls MPI, but not always the same one.
Status StartMpi() {
  int provided = MPI_THREAD_SINGLE;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS)
    return Status::Invalid("MPI_Init_thread failed");
  if (provided >= MPI_THREAD_SERIALIZED) return {};
  MPI_Finalize();
  return Status::Invalid("this MPI does not allow MPI_THREAD_SERIALIZED");
}

}  // namespace
}  // namespace pp

extern "C" void pp_join_mpi(const pp::JoinMpiArgs& args, pp::Joined* joined) {
  joined->status = pp::StartMpi();
  if (!joined->status.ok()) return;
  auto transport = pp::Join(args);
  joined->connected = true;
  if (transport.ok()) {
    joined->transport = std::move(*transport);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  } else {
    joined->status = transport.status();
    MPI_Barrier(MPI_COMM_WORLD);
    pp::LeaveMpi();
  }
}
