#include "runtime/files/adapter_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "schema/base/disk.h"
#include "schema/base/json.h"
#include "schema/model/families.h"

namespace pp {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostConfig = 1 << 20;

// What says nothing about the numbers of an adapter that has been trained.
constexpr std::string_view kIgnored[] = {"task_type",
                                         "auto_mapping",
                                         "peft_version",
                                         "base_model_name_or_path",
                                         "revision",
                                         "inference_mode",
                                         "megatron_core",
                                         "qalora_group_size",
                                         "layers_pattern",
                                         "ensure_weight_tying",
                                         "r",
                                         "lora_alpha",
                                         "target_modules",
                                         "peft_type",
                                         "init_lora_weights",
                                         "lora_dropout",
                                         "fan_in_fan_out",
                                         "bias"};

// How new adapters begin; others have changed the model's own weights.
constexpr std::string_view kInits[] = {"true", "false", "\"gaussian\"", "\"eva\"",
                                       "\"orthogonal\""};

bool IsConv1d(const Job& job) {
  const ModelTable table = TableOf(job.model);
  return std::any_of(table.layer.begin(), table.layer.end(), [](const Operator& op) {
    return op.kind == OperatorKind::kLinear && op.matrix == Matrix::kInOut;
  });
}

// The adapters of a layer.
std::set<std::string> AdaptersOf(const Job& job) {
  std::set<std::string> names;
  for (const Operator& op : TableOf(job).layer)
    for (const Parameter& parameter : op.parameters)
      if (parameter.adapter) names.insert(parameter.pieces[0].name);
  return names;
}

// The Linears of a layer, by their names within it.
std::set<std::string> LinearsOf(const ModelTable& table) {
  std::set<std::string> names;
  for (const Operator& op : table.layer)
    for (const Parameter& parameter : op.parameters)
      for (const Piece& piece : parameter.pieces)
        if (op.kind == OperatorKind::kLinear && parameter.matrix)
          names.insert(piece.name.substr(0, piece.name.rfind('.')));
  return names;
}

std::string ValueText(const nlohmann::json& value) { return Shown(DumpJson(value)); }

// Null, false, {}, [] and "": what is not used.
bool IsEmpty(const nlohmann::json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty()) ||
         value == "";
}

class Checker {
 public:
  Checker(const nlohmann::json& root, const Job& job) : root_(root), job_(job) {}

  Status Run(std::vector<std::string>* notes) const {
    const Lora& lora = job_.lora;
    PP_RETURN_IF_ERROR(Must(
        "peft_type", [](const auto& v) { return v == "LORA"; }, "LORA"));
    PP_RETURN_IF_ERROR(Must(
        "r", [&](const auto& v) { return v.is_number() && v == lora.rank; },
        fmt::format("{}, as in the plan's --lora {}", lora.rank, TextOf(lora))));
    PP_RETURN_IF_ERROR(Must(
        "lora_alpha", [&](const auto& v) { return v.is_number() && v == lora.alpha; },
        fmt::format("{}, as in the plan's --lora {}", lora.alpha, TextOf(lora))));
    PP_RETURN_IF_ERROR(Targets());
    PP_RETURN_IF_ERROR(May(
        "bias", [](const auto& v) { return v == "none"; }, "none"));
    const bool conv1d = IsConv1d(job_);
    PP_RETURN_IF_ERROR(May(
        "fan_in_fan_out", [&](const auto& v) { return v == conv1d; },
        conv1d ? "true: the model's matrices are Conv1D's"
               : "false: the model's matrices are nn.Linear's"));
    PP_RETURN_IF_ERROR(May(
        "init_lora_weights",
        [](const auto& v) {
          return std::find(std::begin(kInits), std::end(kInits), v.dump()) != std::end(kInits);
        },
        "true: others change the weights of the model itself"));
    for (const auto& [key, value] : root_.items())
      if (!IsEmpty(value) &&
          std::find(std::begin(kIgnored), std::end(kIgnored), key) == std::end(kIgnored))
        return Wrong(key, value, "not supported: without it");
    if (const auto dropout = root_.find("lora_dropout");
        dropout != root_.end() && !(dropout->is_number() && *dropout == 0))
      notes->push_back(fmt::format("lora_dropout is {}: not used", ValueText(*dropout)));
    return {};
  }

 private:
  static Status Wrong(const std::string& key, const nlohmann::json& value,
                      const std::string& right) {
    return Status::Invalid(fmt::format("{} is {} ({})", Shown(key), ValueText(value), right));
  }
  template <typename Allows>
  Status May(const char* key, const Allows& allows, const std::string& right) const {
    const auto at = root_.find(key);
    if (at == root_.end() || allows(*at)) return {};
    return Wrong(key, *at, right);
  }
  template <typename Allows>
  Status Must(const char* key, const Allows& allows, const std::string& right) const {
    if (!root_.contains(key)) return Status::Invalid(fmt::format("{} is missing ({})", key, right));
    return May(key, allows, right);
  }

  // The same adapters, however they are called.
  Status Targets() const {
    const std::string right =
        fmt::format("those of the plan's --lora {}: {}", TextOf(job_.lora),
                    fmt::join(TargetNames(job_.lora, TableOf(job_.model)), ", "));
    const std::set<std::string> has = AdaptersOf(job_);
    const ModelTable table = TableOf(job_.model);
    // peft names what it adapts in full where there is little of it.
    const auto adapts = [](const nlohmann::json& value, const std::string& name) {
      if (value == kAllLinear) return true;
      return std::any_of(value.begin(), value.end(), [&](const nlohmann::json& target) {
        return target.is_string() &&
               (target == name || name.ends_with("." + target.get<std::string>()));
      });
    };
    const auto fits = [&](const nlohmann::json& value) {
      if (!value.is_array() && value != kAllLinear) return false;
      for (int layer = 0; layer < job_.model.layers; ++layer)
        for (const std::string& linear : LinearsOf(table)) {
          const std::string prefix = fmt::format(fmt::runtime(table.layer_prefix), layer);
          if (adapts(value, prefix + linear) != has.contains(linear + ".lora_A.weight"))
            return false;
        }
      return true;
    };
    return Must("target_modules", fits, right);
  }

  const nlohmann::json& root_;
  const Job& job_;
};

}  // namespace

std::string AdapterConfig(const Job& job) {
  const Lora& lora = job.lora;
  Json json = {{"peft_type", "LORA"},
               {"task_type", "CAUSAL_LM"},
               {"base_model_name_or_path", nullptr},
               {"r", lora.rank},
               {"lora_alpha", lora.alpha},
               {"lora_dropout", 0.0},
               {"target_modules", TargetNames(lora, TableOf(job.model))},
               {"bias", "none"},
               {"fan_in_fan_out", IsConv1d(job)},
               {"use_dora", false},
               {"use_rslora", false},
               {"init_lora_weights", true},
               {"modules_to_save", nullptr},
               {"inference_mode", true}};
  // As peft's own, which are whole.
  if (lora.alpha == static_cast<double>(static_cast<int64_t>(lora.alpha)))
    json["lora_alpha"] = static_cast<int64_t>(lora.alpha);
  return json.dump(2) + "\n";
}

Status CheckAdapterConfig(const std::string& folder, const Job& job,
                          std::vector<std::string>* notes) {
  const std::string path = folder + "/" + kAdapterConfigName;
  const Result<std::string> text =
      ReadWhole(path, "peft's configuration of an adapter", kMostConfig);
  PP_RETURN_IF_ERROR(text.status());
  const Result<nlohmann::json> root = ParseJson(*text);
  PP_RETURN_IF_ERROR(root.status().In(path));
  if (!root->is_object())
    return Status::Invalid(path + ": is no JSON object (peft's configuration of an adapter)");
  std::vector<std::string> unused;
  PP_RETURN_IF_ERROR(Checker(*root, job).Run(&unused).In(path));
  for (const std::string& note : unused) notes->push_back(fmt::format("{}: {}", Shown(path), note));
  return {};
}

}  // namespace pp
