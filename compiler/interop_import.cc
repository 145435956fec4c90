// Reads torch-csv: cells to actions, actions to stages on ranks, actions to instructions.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

#include "compiler/csv.h"
#include "compiler/interop.h"

namespace pp {
namespace {

constexpr std::string_view kRight =
    "STAGE, one of F I B W SEND_F RECV_F SEND_B RECV_B, MICRO; or as in (4F1;3B0)OVERLAP_F_B";

// One row is one type of action. PyTorch numbers a message by the stage that sends or
// receives it, we by the stage whose output it is (act) or belongs to (grad).
struct Type {
  std::string_view text;
  std::optional<Op> op;  // none: skipped
  int stage = 0;         // our number is PyTorch's plus this
  int peer = 0;          // the other end is on the rank of PyTorch's stage plus this
};
constexpr Type kTypes[] = {
    {"F", Op::kForward},
    {"I", Op::kBackwardInput},
    {"B", Op::kBackward},
    {"W", Op::kBackwardWeight},
    {"BW", Op::kBackward},
    {"SEND_F", Op::kSendAct, 0, +1},
    {"RECV_F", Op::kRecvAct, -1, -1},
    {"SEND_B", Op::kSendGrad, -1, -1},
    {"RECV_B", Op::kRecvGrad, 0, +1},
    {"UNSHARD", {}},
    {"RESHARD", {}},
    {"REDUCE_GRAD", {}},
    {"WAIT_SEND_F", {}},
    {"WAIT_SEND_B", {}},
    {"WAIT_REDUCE_GRAD", {}},
};

struct Action {
  const Type* type;
  int32_t stage, micro;
  bool overlap = false;
  int row = 0, column = 0;
  bool IsMessage() const { return type->peer != 0; }
  int rank() const { return row - 1; }
};

bool TakeNumber(std::string_view* text, int32_t* number) {
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *number);
  if (error != std::errc() || *number < 0 || *number >= kMostCount) return false;
  text->remove_prefix(end - text->data());
  return true;
}

// "3SEND_F12".
std::optional<Action> ParseAction(std::string_view text) {
  Action action{};
  if (!TakeNumber(&text, &action.stage)) return {};
  const std::string_view name = text.substr(0, text.find_first_of("0123456789"));
  action.type = std::find_if(std::begin(kTypes), std::end(kTypes),
                             [&](const Type& type) { return type.text == name; });
  if (action.type == std::end(kTypes)) return {};
  text.remove_prefix(name.size());
  const bool has_micro = TakeNumber(&text, &action.micro);
  if (!text.empty() || (action.type->op && !has_micro)) return {};
  return action;
}

// One action, or the two of "(7F4;0B0)OVERLAP_F_B"; none if the text is wrong.
std::vector<Action> ParseCell(std::string_view text) {
  if (!text.starts_with('(')) {
    const auto action = ParseAction(text);
    return action ? std::vector{*action} : std::vector<Action>();
  }
  const size_t middle = text.find(';'), end = text.find(')');
  if (middle >= end || end == text.npos || text.substr(end + 1) != "OVERLAP_F_B") return {};
  std::vector<Action> pair;
  for (std::string_view half :
       {text.substr(1, middle - 1), text.substr(middle + 1, end - middle - 1)}) {
    const auto action = ParseAction(half);
    if (!action || !action->type->op || action->IsMessage()) return {};
    pair.push_back(*action);
    pair.back().overlap = true;
  }
  return pair;
}

class Importer {
 public:
  Importer(std::string_view text, const std::string& origin)
      : reader_(text, origin), origin_(origin) {}

  Result<Program> Run() {
    PP_RETURN_IF_ERROR(ReadActions());
    PP_RETURN_IF_ERROR(FindShape());
    for (size_t i = 0; i < actions_.size(); ++i) {
      if (actions_[i].overlap) {
        // Nothing may separate the two.
        AddLoad(actions_[i]), AddLoad(actions_[i + 1]);
        PP_RETURN_IF_ERROR(Add(actions_[i++]));
      } else {
        AddLoad(actions_[i]);
      }
      PP_RETURN_IF_ERROR(Add(actions_[i]));
    }
    return std::move(program_);
  }
  std::vector<std::vector<int>> TakeColumns() { return std::move(columns_); }

 private:
  Status Wrong(const Action& action, const std::string& what) const {
    return Status::Invalid(
        fmt::format("{}: row {}, column {}: {}", origin_, action.row, action.column, what));
  }

  Status ReadActions() {
    std::string cell;
    for (;;) {
      const auto more = reader_.Next(&cell);
      if (!more.ok()) return more.status();
      if (!*more) return {};
      if (cell.empty()) continue;
      const std::vector<Action> actions = ParseCell(cell);
      if (actions.empty()) {
        constexpr size_t kShown = 40;
        if (cell.size() > kShown) cell = cell.substr(0, kShown) + "...";
        return reader_.Wrong(fmt::format("{:?} is not an action ({})", cell, kRight));
      }
      for (Action action : actions) {
        if (!action.type->op) continue;
        action.row = reader_.row();
        action.column = reader_.column();
        actions_.push_back(action);
      }
    }
  }

  // Sizes and placement.
  Status FindShape() {
    if (actions_.empty()) return Status::Invalid(origin_ + ": no action (a row per rank)");
    program_.scheme = "torch-csv";
    program_.devices = actions_.back().row;
    bool halves = false, inputs = false;
    for (const Action& action : actions_) {
      program_.stages = std::max(program_.stages, action.stage + 1);
      program_.microbatches = std::max(program_.microbatches, action.micro + 1);
      halves |= action.type->text == "W" || action.type->text == "BW";
      inputs |= action.type->text == "I";
    }
    b_is_input_ = halves && !inputs;
    program_.lists.resize(program_.devices);
    columns_.resize(program_.devices);
    program_.pipe_of.assign(program_.microbatches, 0);

    // There cannot be more stages than actions: otherwise one is missing.
    std::vector<int32_t> rank_of(std::min<size_t>(program_.stages, actions_.size() + 1), -1);
    std::vector<bool> used(program_.devices, false);
    for (const Action& action : actions_) {
      used[action.rank()] = true;
      if (static_cast<size_t>(action.stage) >= rank_of.size()) continue;
      int32_t& rank = rank_of[action.stage];
      if (rank >= 0 && rank != action.rank())
        return Wrong(action, fmt::format("stage {} is in row {} too (a stage is on one rank)",
                                         action.stage, rank + 1));
      rank = action.rank();
    }
    const auto stage = std::find(rank_of.begin(), rank_of.end(), -1);
    if (stage != rank_of.end())
      return Wrong(
          *std::max_element(actions_.begin(), actions_.end(),
                            [](const Action& a, const Action& b) { return a.stage < b.stage; }),
          fmt::format("stage {}, but no action of stage {} (every stage from 0 on)",
                      program_.stages - 1, stage - rank_of.begin()));
    const auto rank = std::find(used.begin(), used.end(), false);
    if (rank != used.end())
      return Status::Invalid(fmt::format("{}: row {}: no action (every rank holds a stage)",
                                         origin_, rank - used.begin() + 1));
    program_.pipes.push_back({std::move(rank_of)});
    return {};
  }

  void AddLoad(const Action& action) {
    if (action.type->op != Op::kForward) return;
    if (action.stage != 0 && action.stage != program_.stages - 1) return;
    Append(action, {.op = Op::kLoad, .stage = action.stage, .micro = action.micro});
  }

  Status Add(const Action& action) {
    const Type& type = *action.type;
    Instruction i{.op = *type.op,
                  .overlap = action.overlap,
                  .stage = action.stage + type.stage,
                  .micro = action.micro};
    if (b_is_input_ && type.text == "B") i.op = Op::kBackwardInput;
    if (action.IsMessage()) {
      const int other = action.stage + type.peer;
      if (other < 0 || other >= program_.stages)
        return Wrong(action, fmt::format("{}{}{}: there is no stage {} (0 to {})", action.stage,
                                         type.text, action.micro, other, program_.stages - 1));
      i.peer = program_.pipes[0].device_of[other];
      if (i.peer == action.rank())
        return Wrong(action, fmt::format("{}{}{}: stage {} is on the same rank (no message)",
                                         action.stage, type.text, action.micro, other));
    }
    Append(action, i);
    return {};
  }

  void Append(const Action& action, const Instruction& i) {
    program_.lists[action.rank()].body.push_back(i);
    columns_[action.rank()].push_back(action.column);
  }

  CsvReader reader_;
  const std::string& origin_;
  std::vector<Action> actions_;
  bool b_is_input_ = false;  // the older notation
  Program program_;
  std::vector<std::vector<int>> columns_;  // of the instructions, by rank
};

}  // namespace

Result<Program> ParseTorchCsv(std::string_view text, const std::string& origin, Naming* name) {
  Importer importer(text, origin);
  auto program = importer.Run();
  if (name != nullptr)
    *name = [columns = importer.TakeColumns()](int device, size_t index) {
      return index == kItself
                 ? fmt::format("row {}", device + 1)
                 : fmt::format("row {}, column {}", device + 1, columns[device][index]);
    };
  return program;
}

}  // namespace pp
