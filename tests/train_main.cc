// Trains five steps and prints the bits of each loss and norm, as one rank under mpiexec or
// as threads:  train_main PLAN DATA [DIRECTORY-OF-THE-MPI-LIBRARY shm|mpi]
#include <bit>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include "runtime/comm/mpi_plugin.h"
#include "runtime/run/train.h"
#include "schema/format/file.h"
#include "tests/kept_report.h"

namespace pp {
namespace {

Status Run(const std::string& plan, const std::string& data, const std::string& directory,
           const std::string& inside) {
  std::unique_ptr<Transport> transport;
  if (!directory.empty()) {
    Joined joined = JoinMpi(
        directory, {inside == "mpi" ? InsideHost::kMpi : InsideHost::kSharedMemory, Status()});
    PP_RETURN_IF_ERROR(joined.status);
    transport = std::move(joined.transport);
  }
  auto program = transport ? LoadRank(plan, transport->rank()) : Load(plan);
  PP_RETURN_IF_ERROR(program.status());
  TrainOptions options;
  options.data = {data};
  options.optimizer.steps = 5;
  options.optimizer.learning_rate = 1e-2;
  if (!program->clip) options.optimizer.grad_clip = 0;
  options.transport = transport.get();
  const KeptReport report = TrainAndKeep(*program, options);
  for (const StepReport& step : report.steps)
    std::printf("%016" PRIx64 " %016" PRIx64 "\n", std::bit_cast<uint64_t>(step.loss),
                std::bit_cast<uint64_t>(step.grad_norm.value_or(0)));
  return report.status;
}

}  // namespace
}  // namespace pp

int main(int argc, char** argv) {
  const pp::Status status =
      pp::Run(argv[1], argv[2], argc > 3 ? argv[3] : "", argc > 4 ? argv[4] : "");
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  std::fflush(stdout);
  std::_Exit(static_cast<int>(status.code()));  // see JoinMpi
}
