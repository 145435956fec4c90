// NCCL itself on one GPU, through the library that piperun loads: a communicator of one rank, which
// sends itself a message. That is all that NCCL does with a single GPU; see tools/gpu_check.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <numeric>
#include <vector>

#include "runtime/device/cuda/cuda_plugin.h"

namespace pp {
namespace {

constexpr int64_t kNumbers = 1 << 20;
constexpr int64_t kBytes = kNumbers * 4;

Status Check(cudaError_t error) {
  return error == cudaSuccess ? Status() : Status::Failed(cudaGetErrorString(error));
}

Status SendToSelf(Nccl& nccl) {
  PP_RETURN_IF_ERROR(Check(cudaSetDevice(0)));
  void *from = nullptr, *to = nullptr;
  cudaStream_t stream = nullptr;
  PP_RETURN_IF_ERROR(Check(cudaMalloc(&from, kBytes)));
  PP_RETURN_IF_ERROR(Check(cudaMalloc(&to, kBytes)));
  PP_RETURN_IF_ERROR(Check(cudaStreamCreate(&stream)));
  std::vector<int32_t> sent(kNumbers), received(kNumbers);
  std::iota(sent.begin(), sent.end(), 1);
  PP_RETURN_IF_ERROR(Check(cudaMemcpy(from, sent.data(), kBytes, cudaMemcpyDefault)));

  const Result<Nccl::Id> id = nccl.MakeId();
  PP_RETURN_IF_ERROR(id.status());
  const auto communicator = nccl.Create(*id, 0, 1);
  PP_RETURN_IF_ERROR(communicator.status());
  const Nccl::Operation both[] = {{Way::kSend, 0, from, kBytes}, {Way::kRecv, 0, to, kBytes}};
  PP_RETURN_IF_ERROR(nccl.Enqueue(*communicator, both, stream));
  PP_RETURN_IF_ERROR(Check(cudaStreamSynchronize(stream)));
  PP_RETURN_IF_ERROR(nccl.Check(*communicator));
  PP_RETURN_IF_ERROR(Check(cudaMemcpy(received.data(), to, kBytes, cudaMemcpyDefault)));
  nccl.Abort({&*communicator, 1});
  return received == sent ? Status() : Status::Failed("other bytes than were sent");
}

}  // namespace
}  // namespace pp

// The library is next to the program.
int main(int, char** argv) {
  const auto folder = std::filesystem::absolute(argv[0]).parent_path().string();
  const pp::NcclBackend backend = pp::OpenNccl(folder);
  const pp::Status status = backend.status.ok() ? pp::SendToSelf(*backend.make()) : backend.status;
  fmt::print("{}\n", status.ok() ? "a message of 4 MiB" : status.message());
  return static_cast<int>(status.code());
}
