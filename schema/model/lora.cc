#include "schema/model/lora.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "schema/base/number.h"
#include "schema/base/split.h"

namespace pp {
namespace {

constexpr std::string_view kRight =
    "r=16,alpha=32, then names of Linears, or all-linear, separated by commas";
constexpr double kMostAlpha = 1e6;

bool IsName(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

Status ReadRank(std::string_view text, Lora* lora) {
  if (lora->rank != 0) return Status::Invalid("r is given twice (once)");
  if (ReadNumber(text, &lora->rank) && lora->rank >= 1 && lora->rank <= kMostRank) return {};
  return Status::Invalid(
      fmt::format("r='{}' (a whole number from 1 to {})", Shown(text), kMostRank));
}

Status ReadAlpha(std::string_view text, Lora* lora) {
  if (lora->alpha != 0) return Status::Invalid("alpha is given twice (once)");
  if (ReadNumber(text, &lora->alpha) && lora->alpha > 0 && lora->alpha <= kMostAlpha) return {};
  return Status::Invalid(
      fmt::format("alpha='{}' (a number above 0, at most {:g})", Shown(text), kMostAlpha));
}

// Without the ".weight" of a Linear's piece.
std::string NameOf(const Piece& piece) { return piece.name.substr(0, piece.name.rfind('.')); }

std::string_view ShortName(std::string_view name) { return name.substr(name.rfind('.') + 1); }

bool Matches(std::string_view name, std::string_view target) {
  if (target == kAllLinear || name == target) return true;
  return name.ends_with(target) && name[name.size() - target.size() - 1] == '.';
}

bool HasAdapter(const Lora& lora, std::string_view name) {
  return std::any_of(lora.targets.begin(), lora.targets.end(),
                     [&](const std::string& target) { return Matches(name, target); });
}

// Of a name that covers these pieces of the Linear's outputs, from column `first` on.
void AddAdapter(const Lora& lora, const std::string& name, int64_t first, std::vector<Piece> pieces,
                Operator* op) {
  int64_t out = 0;
  for (Piece& piece : pieces) {
    piece.name = name + ".lora_B.weight";
    out += piece.size;
  }
  op->adapters.push_back({.a = op->parameters.size(),
                          .rank = lora.rank,
                          .first = first,
                          .out = out,
                          .scale = static_cast<float>(lora.alpha / lora.rank)});
  // The variance of PyTorch's kaiming_uniform_(a=sqrt(5)), which peft has.
  const auto std = static_cast<float>(1 / std::sqrt(3.0 * static_cast<double>(op->in)));
  op->parameters.push_back({.pieces = {{name + ".lora_A.weight", lora.rank}},
                            .cut = op->cut == Cut::kIn ? Cut::kIn : Cut::kNone,
                            .rows = lora.rank,
                            .cols = op->in,
                            .matrix = true,
                            .std = std,
                            .adapter = true});
  op->parameters.push_back({.pieces = std::move(pieces),
                            .cut = op->cut == Cut::kOut ? Cut::kOut : Cut::kNone,
                            .rows = out,
                            .cols = lora.rank,
                            .matrix = true,
                            .adapter = true});
}

void AddAdapters(const Lora& lora, Operator* op) {
  const std::vector<Piece> pieces = op->parameters[0].pieces;
  int64_t first = 0;
  for (size_t begin = 0, end; begin < pieces.size(); begin = end) {
    int64_t columns = 0;
    for (end = begin; end < pieces.size() && pieces[end].name == pieces[begin].name; ++end)
      columns += pieces[end].size;
    if (const std::string name = NameOf(pieces[begin]); HasAdapter(lora, name))
      AddAdapter(lora, name, first, {pieces.begin() + begin, pieces.begin() + end}, op);
    first += columns;
  }
}

}  // namespace

Status ReadLora(std::string_view text, Lora* lora) {
  *lora = {};
  const auto wrong = [&] { return Status::Invalid(fmt::format("'{}' ({})", Shown(text), kRight)); };
  for (const std::string_view word : Split(text, ',')) {
    if (word.starts_with("r=")) {
      PP_RETURN_IF_ERROR(ReadRank(word.substr(2), lora));
    } else if (word.starts_with("alpha=")) {
      PP_RETURN_IF_ERROR(ReadAlpha(word.substr(6), lora));
    } else if (IsName(word)) {
      lora->targets.emplace_back(word);
    } else {
      return wrong();
    }
  }
  if (lora->rank == 0 || lora->alpha == 0) return wrong();
  std::vector<std::string>& targets = lora->targets;
  std::sort(targets.begin(), targets.end());
  targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
  if (targets.size() > 1 && std::find(targets.begin(), targets.end(), kAllLinear) != targets.end())
    return Status::Invalid("all-linear and other targets (all-linear alone, or names of Linears)");
  return {};
}

std::string TextOf(const Lora& lora) {
  if (!lora.given()) return "";
  std::string text = fmt::format("r={},alpha={}", lora.rank, lora.alpha);
  for (const std::string& target : lora.targets) text += "," + target;
  return text;
}

std::vector<std::string> LinearNames(const ModelTable& table) {
  return TargetNames({.rank = 1, .alpha = 1, .targets = {std::string(kAllLinear)}}, table);
}

std::vector<std::string> TargetNames(const Lora& lora, const ModelTable& table) {
  if (lora.targets != std::vector{std::string(kAllLinear)}) return lora.targets;
  std::vector<std::string> names;
  for (const Operator& op : table.layer)
    for (const Parameter& parameter : op.parameters)
      for (const Piece& piece : parameter.pieces) {
        if (op.kind != OperatorKind::kLinear || !parameter.matrix || parameter.adapter) continue;
        const std::string name(ShortName(NameOf(piece)));
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
      }
  return names;
}

Status CheckLora(const Lora& lora, const ModelTable& table) {
  if (!lora.given()) return {};
  const std::string right =
      fmt::format("{}, or {}", fmt::join(LinearNames(table), ", "), kAllLinear);
  if (lora.rank > kMostRank || !(lora.alpha > 0 && lora.alpha <= kMostAlpha))
    return Status::Invalid(fmt::format("--lora: '{}' ({})", TextOf(lora), kRight));
  if (lora.targets.empty()) return Status::Invalid(fmt::format("--lora: no targets ({})", right));
  for (const std::string& target : lora.targets) {
    bool matches = false;
    for (const Operator& op : table.layer)
      for (const Parameter& parameter : op.parameters)
        for (const Piece& piece : parameter.pieces)
          matches |= op.kind == OperatorKind::kLinear && Matches(NameOf(piece), target);
    if (!matches)
      return Status::Invalid(
          fmt::format("--lora: no Linear in the layers is called '{}' ({})", Shown(target), right));
  }
  return {};
}

void AddLora(const Lora& lora, ModelTable* table) {
  if (!lora.given()) return;
  for (std::vector<Operator>* operators : {&table->first, &table->layer, &table->last})
    for (Operator& op : *operators)
      for (Parameter& parameter : op.parameters) parameter.trainable = false;
  for (Operator& op : table->layer)
    if (op.kind == OperatorKind::kLinear) AddAdapters(lora, &op);
}

}  // namespace pp
