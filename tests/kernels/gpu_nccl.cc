// NCCL itself on one GPU, through the library that piperun loads: a communicator of one rank, which
// sends itself a message, and then messages of several sizes for some seconds, each of which the
// host awaits before the next, as it does in a reduction. A line each: SIZE, microseconds, GB/s.
//
//   gpu_nccl [SECONDS]
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <vector>

#include "runtime/comm/clock.h"
#include "runtime/device/cuda/cuda_plugin.h"

namespace pp {
namespace {

constexpr int64_t kNumbers = 1 << 24;
constexpr int64_t kBytes = kNumbers * 4;
constexpr int64_t kLoopBytes[] = {4 << 10, 512 << 10, 4 << 20, kBytes};

Status Check(cudaError_t error) {
  return error == cudaSuccess ? Status() : Status::Failed(cudaGetErrorString(error));
}

class Loop {
 public:
  Loop(Nccl& nccl, Nccl::Communicator communicator, void* from, void* to, cudaStream_t stream)
      : nccl_(nccl), communicator_(communicator), from_(from), to_(to), stream_(stream) {}

  Status Send(int64_t bytes) {
    const Nccl::Operation both[] = {{Way::kSend, 0, from_, bytes}, {Way::kRecv, 0, to_, bytes}};
    PP_RETURN_IF_ERROR(nccl_.Enqueue(communicator_, both, stream_));
    PP_RETURN_IF_ERROR(Check(cudaStreamSynchronize(stream_)));
    return nccl_.Check(communicator_);
  }

  Status Time(int64_t bytes, double seconds) {
    int64_t messages = 0;
    const double begin = SteadySeconds();
    for (; SteadySeconds() < begin + seconds; ++messages) PP_RETURN_IF_ERROR(Send(bytes));
    const double each = (SteadySeconds() - begin) / static_cast<double>(messages);
    fmt::print("{:<50} {:9.1f} us {:9.1f} GB/s\n", fmt::format("{} KiB to itself", bytes >> 10),
               1e6 * each, 1e-9 * static_cast<double>(bytes) / each);
    std::fflush(stdout);
    return {};
  }

 private:
  Nccl& nccl_;
  const Nccl::Communicator communicator_;
  void *const from_, *const to_;
  const cudaStream_t stream_;
};

Status SendToSelf(Nccl& nccl, double seconds) {
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
  Loop loop(nccl, *communicator, from, to, stream);
  PP_RETURN_IF_ERROR(loop.Send(kBytes));
  PP_RETURN_IF_ERROR(Check(cudaMemcpy(received.data(), to, kBytes, cudaMemcpyDefault)));
  if (seconds > 0)
    for (const int64_t bytes : kLoopBytes)
      PP_RETURN_IF_ERROR(loop.Time(bytes, seconds / static_cast<double>(std::size(kLoopBytes))));
  nccl.Abort({&*communicator, 1});
  return received == sent ? Status() : Status::Failed("other bytes than were sent");
}

}  // namespace
}  // namespace pp

// The library is next to the program.
int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 0;
  const auto folder = std::filesystem::absolute(argv[0]).parent_path().string();
  const pp::NcclBackend backend = pp::OpenNccl(folder);
  const pp::Status status =
      backend.status.ok() ? pp::SendToSelf(*backend.make(), seconds) : backend.status;
  fmt::print("{}\n", status.ok() ? "a message of 64 MiB" : status.message());
  return static_cast<int>(status.code());
}
