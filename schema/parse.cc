// Reads the text form.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "schema/base/number.h"
#include "schema/check.h"
#include "schema/routines.h"
#include "schema/sections.h"
#include "schema/text.h"
#include "schema/text_form.h"

namespace pp {
namespace {

using text::kBody;
using text::kEpilogue;
using text::kPrologue;
using text::kRoutines;
using text::kSections;
using text::WordBefore;

using List = std::vector<Instruction>;

// Reads the text line by line, and each line word by word.
class Parser {
 public:
  Parser(std::string_view text, const std::string& origin) : text_(text), origin_(origin) {}

  Result<Program> Run() {
    while (NextLine()) {
      if (words_.empty()) continue;
      PP_RETURN_IF_ERROR(ParseLine());
    }
    if (program_.scheme.empty()) return Wrong("no line 'program NAME stages S microbatches M'");
    PP_RETURN_IF_ERROR(Finish());
    return std::move(program_);
  }
  // Of a device and of its instructions, by section: those of kSections, then the routines.
  struct Lines {
    int device;
    std::vector<std::vector<int>> of;
  };
  std::vector<Lines> TakeLines() { return std::move(lines_); }

 private:
  Status Wrong(const std::string& what) const { return WrongAt(line_number_, what); }
  Status WrongAt(int line, const std::string& what) const {
    return Status::Invalid(fmt::format("{}: line {}: {}", origin_, line, what));
  }

  Status InLine(const Status& status) const { return InLine(line_number_, status); }
  Status InLine(int line, const Status& status) const {
    return status.ok() ? status : WrongAt(line, status.message());
  }

  bool NextLine() {
    if (position_ >= text_.size()) return false;
    const size_t end = std::min(text_.find('\n', position_), text_.size());
    line_ = text_.substr(position_, end - position_);
    position_ = end + 1;
    ++line_number_;
    words_.clear();
    for (size_t i = 0; i < line_.size();) {
      if (line_[i] == ' ' || line_[i] == '\t' || line_[i] == '\r') {
        ++i;
        continue;
      }
      if (line_[i] == '#') break;
      const size_t stop = std::min(line_.find_first_of(" \t\r", i), line_.size());
      words_.push_back(line_.substr(i, stop - i));
      i = stop;
    }
    return true;
  }

  // "s12" with the prefix 's' -> 12. Numbers are in [0, 2^31).
  static bool Number(std::string_view word, std::string_view prefix, int32_t* number) {
    if (!word.starts_with(prefix)) return false;
    word.remove_prefix(prefix.size());
    return ReadNumber(word, number) && *number >= 0;
  }

  Status ParseLine() {
    const std::string_view first = words_[0];
    if (first == "program") return ParseProgram();
    if (program_.scheme.empty()) return Wrong("'program NAME stages S microbatches M' comes first");
    if (const OpInfo* op = FindOp(first)) return ParseInstruction(*op);
    if (first == "device") return ParseDevice();
    if (program_.lists.empty()) return ParseHeader();
    if (words_.size() == 1 && BeginSection(first)) return {};
    return Wrong(fmt::format("unknown instruction '{}' (pipec ops lists them)", Shown(first)));
  }

  // An evaluation needs no line in the header.
  bool BeginSection(std::string_view name) {
    const auto* found = std::find(std::begin(kSections), std::end(kSections), name);
    if (found != std::end(kSections)) {
      section_ = static_cast<int>(found - kSections);
      program_.overlaps |= section_ != kBody;
      return true;
    }
    int routine = FindRoutine(program_, name);
    if (routine < 0) {
      if (name != kEvaluationRoutine) return false;
      routine = static_cast<int>(program_.routines.size());
      program_.routines.push_back(EvaluationLike(program_));
    }
    section_ = kRoutines + routine;
    GrowSections();
    return true;
  }

  // Of the device that is read.
  void GrowSections() {
    read_.back().resize(kRoutines + program_.routines.size());
    lines_.back().of.resize(kRoutines + program_.routines.size());
  }

  // routine NAME microbatches M [on pipes 0 1 ...]
  Status ParseRoutine() {
    Routine routine;
    size_t next = 4;
    bool right = words_.size() >= 4 && words_[2] == "microbatches" &&
                 Number(words_[3], "", &routine.microbatches) && routine.microbatches > 0 &&
                 routine.microbatches <= kMostCount;
    if (right && next + 2 < words_.size() && words_[next] == "on" && words_[next + 1] == "pipes")
      for (next += 2; next < words_.size() && right; ++next)
        right = Number(words_[next], "", &routine.pipe_of.emplace_back());
    if (!right || next != words_.size())
      return Wrong(
          fmt::format("'{}' (routine NAME microbatches M, perhaps: on pipes …)", Shown(line_)));
    routine.name = words_[1];
    if (routine.pipe_of.empty()) routine.pipe_of.assign(routine.microbatches, 0);
    PP_RETURN_IF_ERROR(InLine(CheckRoutine(program_, routine, program_.routines)));
    program_.routines.push_back(std::move(routine));
    routine_lines_.push_back(line_number_);
    return {};
  }

  Status ParseProgram() {
    Program& p = program_;
    if (!p.scheme.empty()) return Wrong("a second line 'program'");
    const bool right = words_.size() == 6 && words_[2] == "stages" && words_[4] == "microbatches" &&
                       Number(words_[3], "", &p.stages) && Number(words_[5], "", &p.microbatches);
    if (!right || p.stages == 0 || p.microbatches == 0)
      return Wrong(fmt::format("'{}' (program NAME stages S microbatches M)", Shown(line_)));
    if (p.stages > kMostCount || p.microbatches > kMostCount)
      return Wrong(
          fmt::format("'{}' (at most {} stages or micro-batches)", Shown(line_), kMostCount));
    p.scheme = words_[1];
    program_line_ = line_number_;
    return InLine(CheckWord("scheme", p.scheme));
  }

  // Whether the line consists of attributes and what Read says of their values.
  template <typename Table, typename Owner>
  bool ReadAttributes(const Table& table, Owner* owner, Status* status) {
    size_t next = 0;
    for (size_t begin = SIZE_MAX; begin != next && next < words_.size() && status->ok();) {
      begin = next;
      ForEachRow(table, [&]<typename T>(const Attribute<Owner, T>& row) {
        if (next != begin || row.text != words_[next]) return;
        const bool flag = std::is_same_v<T, bool> && row.names.empty();
        const bool all = std::is_same_v<T, std::vector<int32_t>>;
        const size_t end = all ? words_.size() : next + 2 - flag;
        if (end > words_.size()) return;
        const auto value =
            fmt::format("{}", fmt::join(words_.begin() + next + 1, words_.begin() + end, ","));
        *status = Read(row, value, &(owner->*row.member)).In(std::string(row.text));
        if (!line_of_.try_emplace(row.option, line_number_).second && status->ok())
          *status = Status::Invalid(fmt::format("a second line '{}'", row.text));
        next = end;
      });
    }
    return next == words_.size() || !status->ok();
  }

  // Everything between the program line and the first device.
  Status ParseHeader() {
    Program& p = program_;
    const std::string_view first = words_[0];
    const std::string_view second = words_.size() > 1 ? words_[1] : "";
    auto numbers = [&](size_t from, std::string_view prefix, std::vector<int32_t>* out) {
      for (size_t i = from; i < words_.size(); ++i)
        if (!Number(words_[i], prefix, &out->emplace_back())) return false;
      return words_.size() > from;
    };
    if (first == "model") {
      auto model = ParseModelConfig(line_.substr(line_.find("model") + 5), origin_);
      if (!model.ok()) return Wrong(model.status().message());
      job_.model = *model;
      line_of_["--model"] = line_number_;
      return {};
    }
    if (first == "routine") return ParseRoutine();
    Status status;
    if (ReadAttributes(kProgramAttributes<Program>, &p, &status) ||
        ReadAttributes(kJobAttributes, &job_, &status)) {
      PP_RETURN_IF_ERROR(InLine(status));
      return InLine(CheckWord("passes", p.passes));
    }
    if (first == "pipe" && numbers(1, "d", &p.pipes.emplace_back().device_of)) {
      pipe_lines_.push_back(line_number_);
      return {};
    }
    if (first == "micro-batches" && second == "on" && p.pipe_of.empty() &&
        numbers(3, "", &p.pipe_of)) {
      pipe_of_line_ = line_number_;
      return {};
    }
    return Wrong(
        fmt::format("'{}' is neither a header line nor 'device N holds s…'", Shown(line_)));
  }

  Status ParseDevice() {
    Program& p = program_;
    int32_t device = 0;
    if (words_.size() < 3 || !Number(words_[1], "", &device) || words_[2] != "holds")
      return Wrong(fmt::format("'{}' (device N holds s…)", Shown(line_)));
    if (device != static_cast<int>(p.lists.size()))
      return Wrong(fmt::format("device {} (device {} comes next)", device, p.lists.size()));
    for (size_t i = 3; i < words_.size(); ++i) {
      int32_t stage = 0;
      if (!Number(words_[i], "s", &stage) || stage >= p.stages)
        return Wrong(fmt::format("'{}' (s0 to s{})", words_[i], p.stages - 1));
      holds_.push_back({stage, device});
    }
    p.lists.emplace_back();
    read_.emplace_back();
    lines_.push_back({line_number_, {}});
    GrowSections();
    section_ = kBody;
    return {};
  }

  Status ParseInstruction(const OpInfo& op) {
    if (program_.lists.empty()) return Wrong("an instruction before the first 'device N holds s…'");
    Instruction i;
    i.op = op.op;
    size_t next = 1;
    const Limits limits{.stages = program_.stages, .micros = MostMicros()};
    auto word = [&] { return next < words_.size() ? words_[next] : std::string_view(); };
    const auto read = [&]<typename T>(const FieldInfo<T>& info) {
      if (!HasField(i, info.field)) return true;
      if constexpr (std::is_same_v<T, Kind>) {
        const KindInfo* kind = FindKind(word());
        if (kind == nullptr || !CanWaitFor(kind->kind)) return false;
        i.*info.member = kind->kind;
      } else if constexpr (IsNumber<T>) {
        if (info.presence == Presence::kMaybe && !word().starts_with(info.text)) return true;
        const std::string_view before = WordBefore(op.op, info.field);
        if (!before.empty() && word() != before) return false;
        if (!before.empty()) ++next;
        int32_t number = 0;
        if (!Number(word(), info.text, &number) || number >= limits.*info.limit) return false;
        i.*info.member = static_cast<T>(number);
      } else {
        if (word() != info.text) return true;
        i.*info.member = true;
      }
      ++next;
      return true;
    };
    if (!AllFields(read) || next != words_.size()) return WrongInstruction(i, word());
    if (section_ == kBody && i.micro >= program_.microbatches &&
        (next_step_.empty() || next_step_.back().first + 1 < program_.lists.size()))
      next_step_.push_back({program_.lists.size() - 1, WrongInstruction(i, "")});
    read_.back()[section_].push_back(i);
    lines_.back().of[section_].push_back(line_number_);
    return {};
  }

  // In a body those of the next step follow if steps overlap; Finish checks whether they do.
  int32_t MostMicros() const {
    if (section_ >= kRoutines) return program_.routines[section_ - kRoutines].microbatches;
    return (section_ == kBody ? 2 : 1) * program_.microbatches;
  }

  // `word` is what was read last.
  Status WrongInstruction(const Instruction& i, std::string_view word) const {
    if (i.op == Op::kWait && i.value == Kind::kNone)
      return Wrong(fmt::format("WAIT '{}' ({})", Shown(word), KindsToWaitFor()));
    return Wrong(fmt::format("'{}' ({})", Shown(line_.substr(line_.find(words_[0]))), Pattern(i)));
  }

  // "SEND_act s0 to s3, m0 to m7, to dN".
  std::string Pattern(const Instruction& i) const {
    const Limits limits{.stages = program_.stages,
                        .micros = section_ == kBody ? program_.microbatches : MostMicros()};
    std::string out(Info(i.op).text);
    std::string_view separator = " ";
    ForEachField([&]<typename T>(const FieldInfo<T>& info) {
      if (!HasField(i, info.field)) return;
      if constexpr (std::is_same_v<T, Kind>) {
        out += fmt::format(" {}", Info(i.*info.member).text);
        return;
      }
      out += separator;
      separator = ", ";
      if (info.presence == Presence::kMaybe) out += "perhaps ";
      if (const auto before = WordBefore(i.op, info.field); !before.empty()) (out += before) += ' ';
      if constexpr (!IsNumber<T>) {
        out += fmt::format("'{}'", info.text);
      } else if (limits.*info.limit == Limits{}.*info.limit) {
        out += fmt::format("{}N", info.text);
      } else {
        out += fmt::format("{0}0 to {0}{1}", info.text, limits.*info.limit - 1);
      }
    });
    return out;
  }

  Status Finish() {
    Program& p = program_;
    p.devices = static_cast<int32_t>(p.lists.size());
    if (p.devices == 0) return Wrong("no line 'device N holds s…'");
    if (p.pipes.empty()) PP_RETURN_IF_ERROR(PipeFromHolds());
    if (p.pipe_of.empty()) p.pipe_of.assign(p.microbatches, 0);
    for (Routine& routine : p.routines)
      if (routine.pipe_of.empty()) routine.pipe_of = p.pipe_of;
    PP_RETURN_IF_ERROR(FinishPipes());
    for (const auto& [device, error] : next_step_)
      if (read_[device][kPrologue].empty() && read_[device][kEpilogue].empty()) return error;
    const int pipes = static_cast<int>(p.pipes.size());
    for (size_t d = 0; d < p.lists.size(); ++d)
      for (size_t section = 0; section < read_[d].size(); ++section) {
        const auto& list = read_[d][section];
        for (size_t n = 0; n < list.size(); ++n)
          if (const Instruction& i = list[n];
              i.peer >= p.devices || i.peer == static_cast<int>(d) || i.pipe >= pipes)
            return WrongAt(
                lines_[d].of[section][n],
                fmt::format("'{}' on device {} (other devices of 0 to {}, pipes 0 to {})",
                            ToText(i), d, p.devices - 1, pipes - 1));
      }
    PP_RETURN_IF_ERROR(FinishLists());
    if (p.ramp.given()) PP_RETURN_IF_ERROR(InLine(line_of_.at("--batch-ramp"), CheckRamp(p)));
    PP_RETURN_IF_ERROR(FinishJob());
    return p.tied.empty() ? Status() : InLine(line_of_.at("--tied"), CheckTied(p));
  }

  // Prologues and epilogues are those that follow from the bodies.
  Status FinishLists() {
    Program& p = program_;
    for (size_t d = 0; d < p.lists.size(); ++d) {
      p.lists[d].body = std::move(read_[d][kBody]);
      read_[d].resize(kRoutines + p.routines.size());
      p.lists[d].routines.assign(std::make_move_iterator(read_[d].begin() + kRoutines),
                                 std::make_move_iterator(read_[d].end()));
    }
    for (int d = 0; d < p.devices; ++d) {
      const Sections sections = SectionsOf(p, d);
      PP_RETURN_IF_ERROR(CheckSection(d, kPrologue, sections.prologue));
      PP_RETURN_IF_ERROR(CheckSection(d, kEpilogue, sections.epilogue));
    }
    return {};
  }

  Status CheckSection(int device, int section, const List& derived) const {
    const List& list = read_[device][section];
    const auto [here, there] =
        std::mismatch(list.begin(), list.end(), derived.begin(), derived.end());
    if (here == list.end() && there == derived.end()) return {};
    const auto shown = [](auto at, const List& of) {
      return at == of.end() ? std::string("nothing") : "'" + ToText(*at) + "'";
    };
    const std::vector<int>& lines = lines_[device].of[section];
    const auto index = static_cast<size_t>(here - list.begin());
    return WrongAt(
        index < lines.size() ? lines[index] : lines_[device].device,
        fmt::format("device {}: its {} has {} where its body has {} (the prologue is the part of "
                    "the body that belongs to the next step, the epilogue the rest)",
                    device, kSections[section], shown(here, list), shown(there, derived)));
  }

  Status FinishPipes() {
    const Program& p = program_;
    for (size_t pipe = 0; pipe < pipe_lines_.size(); ++pipe) {
      const std::vector<int32_t>& device_of = p.pipes[pipe].device_of;
      if (static_cast<int>(device_of.size()) != p.stages)
        return WrongAt(pipe_lines_[pipe],
                       fmt::format("a pipe lists {} devices (one for each of {} stages)",
                                   device_of.size(), p.stages));
      for (const int device : device_of)
        if (device >= p.devices)
          return WrongAt(pipe_lines_[pipe],
                         fmt::format("a pipe names device {} (0 to {})", device, p.devices - 1));
    }
    if (!pipe_lines_.empty()) PP_RETURN_IF_ERROR(InLine(pipe_lines_.back(), CheckPipes(p)));
    PP_RETURN_IF_ERROR(CheckHolds());
    const int pipes = static_cast<int>(p.pipes.size());
    for (size_t r = 0; r < routine_lines_.size(); ++r)
      PP_RETURN_IF_ERROR(InLine(routine_lines_[r], CheckPipeOf(p, p.routines[r])));
    if (static_cast<int>(p.pipe_of.size()) == p.microbatches &&
        *std::max_element(p.pipe_of.begin(), p.pipe_of.end()) < pipes)
      return {};
    return WrongAt(pipe_of_line_, fmt::format("'micro-batches on pipes' ({} numbers below {})",
                                              p.microbatches, pipes));
  }

  // What the lines 'device' say of stages is what the lines 'pipe' do.
  Status CheckHolds() const {
    std::vector<std::vector<int32_t>> said(program_.devices), held(program_.devices);
    for (const auto& [stage, device] : holds_) said[device].push_back(stage);
    for (int s = 0; s < program_.stages; ++s)
      for (const Pipe& pipe : program_.pipes) held[pipe.device_of[s]].push_back(s);
    for (int d = 0; d < program_.devices; ++d) {
      for (auto* stages : {&said[d], &held[d]}) {
        std::sort(stages->begin(), stages->end());
        stages->erase(std::unique(stages->begin(), stages->end()), stages->end());
      }
      if (said[d] != held[d])
        return WrongAt(lines_[d].device,
                       fmt::format("'device {} holds s{}', but the pipes place s{} there", d,
                                   fmt::join(said[d], " s"), fmt::join(held[d], " s")));
    }
    return {};
  }

  Status PipeFromHolds() {
    Pipe pipe{std::vector<int32_t>(program_.stages, -1)};
    for (auto [stage, device] : holds_) {
      if (pipe.device_of[stage] >= 0)
        return WrongAt(
            lines_[device].device,
            fmt::format("stage {} is held by device {}, too (lines 'pipe d…' for several "
                        "pipes)",
                        stage, pipe.device_of[stage]));
      pipe.device_of[stage] = device;
    }
    for (int s = 0; s < program_.stages; ++s)
      if (pipe.device_of[s] < 0) return WrongStage(s);
    program_.pipes.push_back(std::move(pipe));
    return {};
  }

  // Of a stage that no device holds: who computes it all the same, or who counted it.
  Status WrongStage(int stage) const {
    for (size_t d = 0; d < lines_.size(); ++d)
      for (size_t section = 0; section < read_[d].size(); ++section) {
        const auto& list = read_[d][section];
        for (size_t n = 0; n < list.size(); ++n)
          if (list[n].stage == stage && Info(list[n].op).lane == Lane::kCompute)
            return WrongAt(lines_[d].of[section][n],
                           fmt::format("'{}', but no device holds stage {} (device {} holds … s{})",
                                       ToText(list[n]), stage, d, stage));
      }
    return WrongAt(program_line_,
                   fmt::format("no device holds stage {} (of {} stages)", stage, program_.stages));
  }

  Status FinishJob() {
    Status status;
    if (!job_.has_model()) {
      ForEachRow(kJobAttributes, [&](const auto& row) {
        if (const auto line = line_of_.find(row.option); line != line_of_.end() && status.ok())
          status = WrongAt(line->second, fmt::format("'{}' without a line 'model'", row.text));
      });
      return status;
    }
    if (job_.stages() != program_.stages)
      return WrongAt(LineOf("--layers-per-stage"),
                     fmt::format("'layers' has {} numbers (one for each of {} stages)",
                                 job_.stages(), program_.stages));
    if (const Status status = CheckJob(job_); !status.ok())
      return WrongAt(LineOf(status.message().substr(0, status.message().find(':'))),
                     status.message());
    program_.job = job_;
    program_.shape_of = job_.shapes.ByMicrobatch();
    return job_.shapes.given() ? InLine(LineOf("--shapes"), CheckShapes(program_)) : Status();
  }
  // Of what an option would say; where no line does, of the model.
  int LineOf(const std::string& option) const {
    const auto line = line_of_.find(option);
    return line_of_.at(line == line_of_.end() ? "--model" : option);
  }

  std::string_view text_, line_;
  std::string origin_;
  size_t position_ = 0;
  int line_number_ = 0;
  std::vector<std::string_view> words_;
  Program program_;
  std::vector<std::vector<List>> read_;  // by device, by section
  Job job_;
  std::vector<std::pair<int32_t, int32_t>> holds_;  // stage, device
  // The first micro-batch from M on in a device's list, an error unless its steps overlap.
  std::vector<std::pair<size_t, Status>> next_step_;
  int section_ = kBody;
  int program_line_ = 0, pipe_of_line_ = 0;
  std::vector<int> routine_lines_;
  std::vector<int> pipe_lines_;
  std::map<std::string, int> line_of_;  // the attributes of header lines, by option
  std::vector<Lines> lines_;            // by device
};

}  // namespace

Result<Program> Parse(std::string_view text, const std::string& origin, Naming* name) {
  Parser parser(text, origin);
  auto program = parser.Run();
  if (name != nullptr)
    *name = [lines = parser.TakeLines()](int device, size_t index) {
      if (index == kItself) return fmt::format("line {}", lines[device].device);
      for (size_t section = kBody; section < lines[device].of.size(); ++section) {
        if (section == kEpilogue) continue;
        const std::vector<int>& of = lines[device].of[section];
        if (index < of.size()) return fmt::format("line {}", of[index]);
        index -= of.size();
      }
      PP_CHECK(false);
    };
  return program;
}

}  // namespace pp
