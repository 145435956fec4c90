#include "runtime/device/cuda/nccl_driver.h"

#include <fmt/format.h>
#include <nccl.h>

#include <cstring>

namespace pp {
namespace {

class RealNccl : public Nccl {
 public:
  Result<Id> MakeId() override {
    ncclUniqueId unique;
    PP_RETURN_IF_ERROR(Check(ncclGetUniqueId(&unique), nullptr));
    Id id{};
    static_assert(sizeof unique == sizeof id);
    std::memcpy(id.data(), &unique, sizeof id);
    return id;
  }

  Result<Communicator> Create(const Id& id, int member, int members) override {
    ncclUniqueId unique;
    std::memcpy(&unique, id.data(), sizeof unique);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.maxCTAs = kNcclBlocks;
    ncclComm_t made = nullptr;
    PP_RETURN_IF_ERROR(
        Check(ncclCommInitRankConfig(&made, members, unique, member, &config), nullptr));
    return static_cast<Communicator>(made);
  }

  Status Enqueue(Communicator communicator, std::span<const Operation> operations,
                 Stream stream) override {
    auto* const comm = static_cast<ncclComm_t>(communicator);
    auto* const to = static_cast<cudaStream_t>(stream);
    PP_RETURN_IF_ERROR(Check(ncclGroupStart(), comm));
    Status status;
    for (const Operation& operation : operations) {
      const auto bytes = static_cast<size_t>(operation.bytes);
      const ncclResult_t result =
          operation.way == Way::kSend
              ? ncclSend(operation.data, bytes, ncclInt8, operation.member, comm, to)
              : ncclRecv(operation.data, bytes, ncclInt8, operation.member, comm, to);
      if (status.ok()) status = Check(result, comm);
    }
    const Status ended = Check(ncclGroupEnd(), comm);
    return status.ok() ? ended : status;
  }

  Status Check(Communicator communicator) override {
    auto* const comm = static_cast<ncclComm_t>(communicator);
    ncclResult_t state = ncclSuccess;
    PP_RETURN_IF_ERROR(Check(ncclCommGetAsyncError(comm, &state), comm));
    return Check(state, comm);
  }

  void Abort(std::span<const Communicator> communicators) override {
    ncclGroupStart();
    for (Communicator communicator : communicators)
      ncclCommAbort(static_cast<ncclComm_t>(communicator));
    ncclGroupEnd();
  }

 private:
  static Status Check(ncclResult_t result, ncclComm_t comm) {
    if (result == ncclSuccess) return {};
    const char* more = ncclGetLastError(comm);
    const bool says_more = more != nullptr && *more != '\0';
    return Status::Failed(fmt::format("NCCL: {}{}{}", ncclGetErrorString(result),
                                      says_more ? ": " : "", says_more ? more : ""));
  }
};

}  // namespace

std::unique_ptr<Nccl> MakeNccl() { return std::make_unique<RealNccl>(); }

}  // namespace pp
