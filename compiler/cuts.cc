#include "compiler/cuts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "schema/base/json.h"
#include "schema/base/text_source.h"
#include "schema/model/config.h"

namespace pp {
namespace {

// The stages as they are read, from the first to the last. Every part is checked when it comes:
// what is repeated a billion times is refused at the second or at the first layer too many.
class Cutter {
 public:
  explicit Cutter(int layers) : layers_(layers) {}

  int read() const { return read_; }

  Status Embedding() {
    if (has_embedding_)
      return Status::Invalid(fmt::format("stage {} has the embedding again (once)", Last()));
    if (Last() > 0 || read_ > 0 || has_loss_) return NoEmbedding();
    has_embedding_ = true;
    return {};
  }
  Status Layers(int64_t count) {
    if (!has_embedding_) return NoEmbedding();
    if (has_loss_)
      return Status::Invalid(fmt::format("stage {} has a layer after the loss", Last()));
    if (count > layers_ - read_)
      return Status::Invalid(
          fmt::format("{} or more layers ({}, the model's)", int64_t{read_} + count, layers_));
    read_ += static_cast<int>(count);
    stages_.back() += static_cast<int>(count);
    return {};
  }
  Status Loss() {
    if (!has_embedding_) return NoEmbedding();
    if (has_loss_)
      return Status::Invalid(fmt::format("stage {} has the loss again (once)", Last()));
    has_loss_ = true;
    return {};
  }
  Status NextStage() {
    if (!has_embedding_) return NoEmbedding();
    if (has_loss_)
      return Status::Invalid(
          fmt::format("stage {} comes after the loss (none does)", stages_.size()));
    if (Last() > 0 && stages_.back() == 0)
      return Status::Invalid(
          fmt::format("stage {} has nothing (a layer: empty stages are a deadlock of Megatron-LM, "
                      "issue 1852)",
                      Last()));
    stages_.push_back(0);
    return {};
  }
  Result<std::vector<int>> End() {
    if (!has_embedding_) return NoEmbedding();
    if (!has_loss_)
      return Status::Invalid(fmt::format("stage {}, the last, has no loss at its end", Last()));
    if (read_ < layers_)
      return Status::Invalid(fmt::format("{} layers ({}, the model's)", read_, layers_));
    return std::move(stages_);
  }

 private:
  size_t Last() const { return stages_.size() - 1; }
  Status NoEmbedding() const {
    return Status::Invalid("stage 0 does not begin with the embedding (which comes first)");
  }

  const int layers_;
  int read_ = 0;
  bool has_embedding_ = false, has_loss_ = false;
  std::vector<int> stages_ = {0};
};

// Megatron-LM's text.
class LayoutReader {
 public:
  LayoutReader(std::string text, Cutter* cutter) : text_(std::move(text)), cutter_(cutter) {}

  Status Run() {
    while (at_ < text_.size()) {
      if (text_[at_] != '(') {
        const auto one = Repeated();
        PP_RETURN_IF_ERROR(one.status());
        PP_RETURN_IF_ERROR(Add(*one));
        continue;
      }
      ++at_;
      PP_RETURN_IF_ERROR(Group());
    }
    return {};
  }

 private:
  struct Part {
    char letter;
    int64_t count;
  };

  // x or x*n.
  Result<Part> Repeated() {
    const char letter = text_[at_];
    if (std::string_view("EtL|").find(letter) == std::string_view::npos) return Wrong();
    ++at_;
    const auto count = Count();
    PP_RETURN_IF_ERROR(count.status());
    return Part{letter, *count};
  }

  // After a '(': to the ')*n' and its number, and all of it so many times.
  Status Group() {
    std::vector<Part> parts;
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != ')') {
      if (text_[at_] == '(')
        return Status::Invalid("'(' between parentheses (Megatron-LM has one level)");
      const auto one = Repeated();
      PP_RETURN_IF_ERROR(one.status());
      if (one->count > 0) parts.push_back(*one);
    }
    const bool empty = at_ == begin;
    if (at_ + 1 >= text_.size() || text_[at_ + 1] != '*')
      return Status::Invalid("'(' without its ')*n' (as in (tt|)*3)");
    if (empty) return Status::Invalid("'()' (something to repeat)");
    ++at_;
    const auto count = Count();
    PP_RETURN_IF_ERROR(count.status());
    // Each time adds a layer, or is the last.
    if (parts.empty()) return {};
    for (int64_t i = 0; i < *count; ++i)
      for (const Part& part : parts) PP_RETURN_IF_ERROR(Add(part));
    return {};
  }

  // *n, or nothing, which is once.
  Result<int64_t> Count() {
    constexpr int64_t kMost = 1 << 30;  // of more, the same is wrong
    if (at_ == text_.size() || text_[at_] != '*') return int64_t{1};
    const size_t begin = ++at_;
    int64_t count = 0;
    for (; at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])); ++at_)
      count = std::min(kMost, 10 * count + (text_[at_] - '0'));
    if (at_ == begin) return Status::Invalid("'*' without a number (as in t*3)");
    return count;
  }

  Status Add(const Part& part) {
    if (part.letter == 't') return cutter_->Layers(part.count);
    for (int64_t i = 0; i < part.count; ++i)
      PP_RETURN_IF_ERROR(part.letter == 'E'   ? cutter_->Embedding()
                         : part.letter == 'L' ? cutter_->Loss()
                                              : cutter_->NextStage());
    return {};
  }

  Status Wrong() const {
    const std::string_view letter = std::string_view(text_).substr(at_, 1);
    if (letter == "m")
      return Status::Invalid("m, a layer that predicts several tokens (no model here has them)");
    return Status::Invalid(
        fmt::format("'{}' after '{}' (E, t, L or |, each also with *n, or (...)*n)", Shown(letter),
                    Shown(std::string_view(text_).substr(0, at_))));
  }

  std::string text_;  // without commas
  size_t at_ = 0;
  Cutter* cutter_;
};

// A list of lists of names, in the order of the model.
class ListReader {
 public:
  explicit ListReader(Cutter* cutter) : cutter_(cutter) {}

  Status Run(const nlohmann::json& stages) {
    const auto is_list = [](const nlohmann::json& value) { return value.is_array(); };
    if (!stages.is_array() || !std::all_of(stages.begin(), stages.end(), is_list)) return NoList();
    for (size_t stage = 0; stage < stages.size(); ++stage) {
      if (stage > 0) PP_RETURN_IF_ERROR(cutter_->NextStage());
      for (const nlohmann::json& name : stages[stage]) {
        if (!name.is_string()) return NoList();
        PP_RETURN_IF_ERROR(Add(name.get_ref<const std::string&>(), stage));
      }
      if (has_norm_)
        return Status::Invalid(fmt::format("stage {} has norm without the head (lm_head)", stage));
    }
    return {};
  }

  static Status NoList() {
    return Status::Invalid(
        R"(not a list of lists of names ([["tok_embeddings","layers.0"],["layers.1",...],...]))");
  }

 private:
  Status Add(const std::string& name, size_t stage) {
    if (has_norm_) {
      has_norm_ = false;
      if (name == "lm_head" || name == "output") return cutter_->Loss();
      return Status::Invalid(
          fmt::format("stage {}: '{}' after norm (lm_head)", stage, Shown(name)));
    }
    if (name == "tok_embeddings" || name == "embedding") return cutter_->Embedding();
    if (name == "decoder") return cutter_->Layers(1);
    if (name == "loss") return cutter_->Loss();
    has_norm_ = name == "norm";
    if (has_norm_) return {};
    const std::string next = fmt::format("layers.{}", cutter_->read());
    if (name == next) return cutter_->Layers(1);
    const bool is_layer = name.starts_with("layers.");
    return Status::Invalid(fmt::format("stage {}: '{}' ({})", stage, Shown(name),
                                       is_layer ? next + " is next: each layer once, in order"
                                                : "tok_embeddings, layers.0, ..., norm, lm_head"));
  }

  Cutter* cutter_;
  bool has_norm_ = false;  // and its head is next
};

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == text.npos) return "";
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

Status Read(std::string_view trimmed, Cutter* cutter) {
  std::string text(trimmed);
  if (!text.starts_with('[')) {
    std::erase(text, ',');
    return LayoutReader(std::move(text), cutter).Run();
  }
  std::replace(text.begin(), text.end(), '\'', '"');  // as Python prints lists
  const auto stages = ParseJson(text);
  PP_RETURN_IF_ERROR(stages.status());
  return ListReader(cutter).Run(*stages);
}

}  // namespace

Result<Cuts> ReadCuts(std::string_view text, int layers, int devices) {
  Cutter cutter(layers);
  PP_RETURN_IF_ERROR(Read(Trimmed(text), &cutter));
  auto split = cutter.End();
  PP_RETURN_IF_ERROR(split.status());
  const int stages = static_cast<int>(split->size());
  if (devices > 0 && stages % devices != 0)
    return Status::Invalid(fmt::format("{} stage{} on {} devices (as many on each: on {} devices)",
                                       stages, stages == 1 ? "" : "s", devices, Divisors(stages)));
  const int v = devices > 0 ? stages / devices : 1;
  return Cuts{v > 1 ? "interleaved" : "1f1b", v, std::move(*split)};
}

bool IsCutsFile(std::string_view given) {
  const std::string_view text = Trimmed(given);
  return !text.starts_with('[') && text.find_first_of("./") != text.npos;
}

Result<std::string> CutsText(const std::string& given) {
  constexpr int64_t kMostBytes = 1 << 20;
  if (!IsCutsFile(given)) return given;
  return ReadText(given, "a layout of Megatron-LM, or torchtitan's list of names", kMostBytes);
}

std::string MegatronCuts(const std::vector<int>& layers_per_stage) {
  std::string text = "E";
  for (size_t stage = 0; stage < layers_per_stage.size(); ++stage) {
    const int layers = layers_per_stage[stage];
    if (stage > 0) text += "|";
    if (layers > 0) text += layers > 1 ? fmt::format("t*{}", layers) : "t";
  }
  return text + "L";
}

std::string TorchtitanCuts(const std::vector<int>& layers_per_stage) {
  nlohmann::json stages = nlohmann::json::array();
  int layer = 0;
  for (const int layers : layers_per_stage) {
    nlohmann::json& names = stages.emplace_back(nlohmann::json::array());
    for (int i = 0; i < layers; ++i) names.push_back(fmt::format("layers.{}", layer++));
  }
  stages.front().insert(stages.front().begin(), "tok_embeddings");
  stages.back().push_back("norm");
  stages.back().push_back("lm_head");
  return stages.dump();
}

}  // namespace pp
