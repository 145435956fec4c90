#include "runtime/main/experiments.h"

#include <fmt/format.h>

#include <functional>
#include <string>
#include <string_view>

#include "schema/base/number.h"
#include "schema/base/split.h"

namespace pp {
namespace {

struct Key {
  const char* name;
  const char* values;
  // False: the value is none of them.
  bool (*set)(std::string_view value, CudaExperiments* experiments);
};

// One of two words.
bool SetTo(std::string_view value, std::string_view yes, std::string_view no, bool* out) {
  *out = value == yes;
  return value == yes || value == no;
}

bool SetCutSums(std::string_view value, CudaExperiments* to) {
  to->cut_sums = value == "none"      ? CutSums::kNever
                 : value == "compute" ? CutSums::kInOrder
                                      : CutSums::kAnyOrder;
  return value == "none" || value == "compute" || value == "any";
}

bool SetAlignment(std::string_view value, CudaExperiments* to) {
  return ReadNumber(value, &to->alignment) && (to->alignment == 16 || to->alignment == 64);
}

bool SetSpare(std::string_view value, CudaExperiments* to) {
  return ReadNumber(value, &to->spare) && to->spare >= 0 && to->spare <= 64;
}

bool SetPoll(std::string_view value, CudaExperiments* to) {
  int64_t number = 0;
  const bool right = ReadNumber(value, &number) && number >= 1 && number <= 10000;
  to->poll = std::chrono::microseconds(number);
  return right;
}

constexpr Key kKeys[] = {
    {"reduction", "none, compute or any", SetCutSums},
    {"alignment", "16 or 64", SetAlignment},
    {"gelu", "fused or separate",
     [](std::string_view value, CudaExperiments* to) {
       return SetTo(value, "fused", "separate", &to->fuses_gelu);
     }},
    {"poll", "microseconds from 1 to 10000", SetPoll},
    {"weights", "beside or after",
     [](std::string_view value, CudaExperiments* to) {
       return SetTo(value, "beside", "after", &to->weights_beside);
     }},
    {"spare", "multiprocessors from 0 to 64", SetSpare},
};

Status Set(std::string_view item, CudaExperiments* experiments) {
  const size_t equals = item.find('=');
  const std::string_view name = item.substr(0, equals);
  for (const Key& key : kKeys) {
    if (name != key.name) continue;
    const auto value = equals == item.npos ? std::string_view() : item.substr(equals + 1);
    if (key.set(value, experiments)) return {};
    return Status::Invalid(
        fmt::format("--cuda-experiments: '{}' ({}={})", Shown(item), key.name, key.values));
  }
  return Status::Invalid(
      fmt::format("--cuda-experiments: '{}' (KEY=VALUE,... of reduction, alignment, gelu, poll, "
                  "weights, spare)",
                  Shown(item)));
}

}  // namespace

Result<CudaExperiments> ParseExperiments(const Arguments& arguments) {
  CudaExperiments experiments;
  if (arguments.train.cuda_experiments.empty()) return experiments;
  for (const std::string_view item : Split(arguments.train.cuda_experiments, ','))
    PP_RETURN_IF_ERROR(Set(item, &experiments));
  return experiments;
}

}  // namespace pp
