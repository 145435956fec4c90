// piperun: the command line. What it does is in train.h.
#include <fmt/format.h>
#include <fmt/ostream.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <charconv>
#include <climits>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <optional>

#include "runtime/mpi_transport.h"
#include "runtime/output_file.h"
#include "runtime/step_log.h"
#include "runtime/train.h"
#include "schema/file.h"

namespace pp {
namespace {

// What the user typed. Numbers stay text until they are checked, so that every wrong one
// gets the same kind of error.
struct Arguments {
  std::string plan, data, weights, log, trace;
  std::string steps = "100", seed = "1", threads = "1", stall_timeout = "300";
  std::string backend = "cpu", transport = "auto", schedule = "constant";
  std::string lr = "3e-4", min_lr, weight_decay = "0.1", grad_clip = "1", warmup_steps = "0";
};

// What mpiexec told this process, if it started it.
struct Launch {
  int rank = 0;
  int ranks = 1;
  bool mpi = false;
};

template <typename Number>
bool Parses(const std::string& text, Number* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

Status ParseWhole(const char* option, const std::string& text, int64_t least, int64_t most,
                  int64_t* number) {
  if (Parses(text, number) && *number >= least && *number <= most) return {};
  return Status::Invalid(
      fmt::format("{}: '{}' (a whole number from {} to {})", option, text, least, most));
}

Status ParseReal(const char* option, const std::string& text, double* number) {
  if (Parses(text, number) && std::isfinite(*number) && *number >= 0) return {};
  return Status::Invalid(fmt::format("{}: '{}' (a number from 0)", option, text));
}

Status OneOf(const char* option, const std::string& text,
             std::initializer_list<const char*> known) {
  if (std::find(known.begin(), known.end(), text) != known.end()) return {};
  return Status::Invalid(fmt::format("{}: '{}' ({})", option, text, fmt::join(known, ", ")));
}

Status ParseOptions(const Arguments& a, TrainOptions* options) {
  int64_t seed = 0, threads = 0;
  OptimizerOptions& optimizer = options->optimizer;
  PP_RETURN_IF_ERROR(ParseWhole("--steps", a.steps, 1, INT32_MAX, &optimizer.steps));
  PP_RETURN_IF_ERROR(ParseWhole("--seed", a.seed, 0, INT64_MAX, &seed));
  PP_RETURN_IF_ERROR(ParseWhole("--threads", a.threads, 1, 1024, &threads));
  PP_RETURN_IF_ERROR(OneOf("--backend", a.backend, {"cpu", "cuda"}));
  if (a.backend == "cuda")
    return Status::Invalid("--backend: 'cuda' is not in this build (cpu)");
  PP_RETURN_IF_ERROR(OneOf("--transport", a.transport, {"auto", "threads", "mpi"}));
  PP_RETURN_IF_ERROR(OneOf("--schedule", a.schedule, {"constant", "cosine"}));
  PP_RETURN_IF_ERROR(ParseReal("--lr", a.lr, &optimizer.learning_rate));
  optimizer.min_learning_rate = 0.1 * optimizer.learning_rate;
  if (!a.min_lr.empty())
    PP_RETURN_IF_ERROR(ParseReal("--min-lr", a.min_lr, &optimizer.min_learning_rate));
  PP_RETURN_IF_ERROR(ParseReal("--weight-decay", a.weight_decay, &options->weight_decay));
  PP_RETURN_IF_ERROR(ParseReal("--grad-clip", a.grad_clip, &optimizer.grad_clip));
  PP_RETURN_IF_ERROR(
      ParseWhole("--warmup-steps", a.warmup_steps, 0, INT32_MAX, &optimizer.warmup_steps));
  PP_RETURN_IF_ERROR(ParseReal("--stall-timeout", a.stall_timeout, &options->stall_timeout));
  optimizer.cosine = a.schedule == "cosine";
  options->seed = static_cast<uint64_t>(seed);
  options->threads = static_cast<int>(threads);
  options->data = a.data;
  options->weights = a.weights;
  options->record = !a.trace.empty();
  // Neither the folder nor the files have to have the same names everywhere.
  options->fingerprint = std::hash<std::string>()(
      fmt::format("{} {} {} {} {} {} {} {} {} {}", a.steps, a.seed, a.schedule, a.lr, a.min_lr,
                  a.weight_decay, a.grad_clip, a.warmup_steps, a.trace.empty(), a.weights.empty()));
  return {};
}

std::optional<int> EnvironmentNumber(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    int number = 0;
    const char* text = std::getenv(name);
    if (text != nullptr && Parses(std::string(text), &number)) return number;
  }
  return std::nullopt;
}

// MPICH's and Open MPI's launchers leave these.
Launch ReadLaunch() {
  const auto ranks = EnvironmentNumber({"PMI_SIZE", "OMPI_COMM_WORLD_SIZE"});
  const auto rank = EnvironmentNumber({"PMI_RANK", "OMPI_COMM_WORLD_RANK"});
  return {rank.value_or(0), ranks.value_or(1), ranks.has_value()};
}

// Counted by the signal handler: lock-free, and nothing else is allowed there.
std::atomic<int> stop_requests{0};
static_assert(std::atomic<int>::is_always_lock_free);

// Ctrl-C reaches a rank from the terminal and again from mpiexec: a second signal counts
// only when it is at least a second later.
void OnSignal(int) {
  static volatile std::sig_atomic_t armed = 1;
  if (stop_requests.load() == 0) {
    stop_requests.store(1);
    armed = 0;
    alarm(1);
  } else if (armed) {
    stop_requests.store(2);
  }
}

}  // namespace
}  // namespace pp
