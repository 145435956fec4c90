#include "runtime/comm/agree.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/comm/clock.h"
#include "runtime/comm/host_memory.h"

namespace pp {
namespace {

// How often a rank that is not ready gives a heartbeat.
constexpr double kSignSeconds = 0.2;

// What goes between rank 0 and the others: heartbeats, then a rank's final word, and last the
// answer of rank 0.
struct Note {
  bool last = false;
  bool release = false;  // from rank 0: a rank has an error
  bool released = false;
  bool complete = false;
  int32_t code = 0;
  HostMemory memory;
  uint64_t gpu = 0;
  uint64_t digests[kMostItems] = {};
  char text[1024] = {};
};

void SetStatus(const Status& status, Note* note) {
  note->code = static_cast<int32_t>(status.code());
  const size_t length = std::min(status.message().size(), sizeof(note->text) - 1);
  std::memcpy(note->text, status.message().data(), length);
  note->text[length] = 0;
}

Status StatusOf(const Note& note) {
  switch (static_cast<Code>(note.code)) {
    case Code::kOk:
      return {};
    case Code::kFailed:
      return Status::Failed(note.text);
    case Code::kInvalid:
      return Status::Invalid(note.text);
  }
  return Status::Failed("an answer without a meaning");
}

// The two ends of the conversation with one rank.
struct Line {
  int peer = 0;
  Note out, in;
  bool sending = false, receiving = false;
  bool told = false;    // the last note has been sent
  bool failed = false;  // a note has said that some rank has an error
  double sent_at = 0;
  double silent = 0;  // seconds in which this rank was awake and heard nothing
  // Must not be read while it is being received.
  bool heard() const { return !receiving && in.last; }
};

class Agreement {
 public:
  Agreement(Transport& transport, double patience)
      : transport_(transport),
        patience_(patience),
        lines_(transport.rank() == 0 ? transport.ranks() - 1 : 1) {
    const double now = SteadySeconds();
    for (size_t i = 0; i < lines_.size(); ++i) {
      lines_[i].peer = transport.rank() == 0 ? static_cast<int>(i) + 1 : 0;
      lines_[i].sent_at = now;
    }
  }

  // False after Run: transfers are still under way, here or in the work of some rank.
  bool finished() const { return finished_; }

  Status Run(const AskReady& ready, const std::function<void()>& release) {
    while (true) {
      const uint64_t seen = transport_.bell().rings();
      const double lap = clock_.Lap();
      if (!ready_) {
        ready_ = ready();
        if (ready_ && transport_.rank() != 0) last_ = Word();
      }
      if (transport_.rank() == 0 && ready_ && !last_ && AllHeard()) last_ = Answer();
      for (Line& line : lines_) PP_RETURN_IF_ERROR(Advance(&line, lap));
      if (!releases_ && HasError()) {
        releases_ = true;
        if (release) release();
      }
      if (last_ && std::all_of(lines_.begin(), lines_.end(), [](auto& l) { return l.told; }) &&
          AllHeard()) {
        const Note& answer = transport_.rank() == 0 ? *last_ : lines_[0].in;
        finished_ = !answer.released;
        return StatusOf(answer);
      }
      const std::chrono::microseconds nap(transport_.polls() ? 50 : ready_ ? 100000 : 1000);
      transport_.bell().WaitFor(seen, transport_.MaySleep(nap));
    }
  }

 private:
  bool AllHeard() const {
    return std::all_of(lines_.begin(), lines_.end(), [](auto& l) { return l.heard(); });
  }

  // Whether some rank has one, as far as this one knows.
  bool HasError() const {
    if (ready_ && !ready_->status.ok() && !ready_->complete) return true;
    return std::any_of(lines_.begin(), lines_.end(), [](const Line& line) { return line.failed; });
  }

  Status Advance(Line* line, double lap) {
    const double now = SteadySeconds();
    const Port send{Way::kSend, Channel::kControl, line->peer},
        receive{Way::kRecv, Channel::kControl, line->peer};
    if (line->sending) {
      bool over = false;
      PP_RETURN_IF_ERROR(transport_.Test(send, &over));
      line->sending = !over;
      if (over) line->told = line->out.last;
    }
    if (!line->sending && !line->told && (last_ || now - line->sent_at > kSignSeconds)) {
      line->out = last_ ? *last_ : Note{.release = releases_ && transport_.rank() == 0};
      line->sent_at = now;
      line->sending = true;
      PP_RETURN_IF_ERROR(transport_.Start(send, &line->out, sizeof line->out));
    }
    if (line->receiving) {
      bool over = false;
      PP_RETURN_IF_ERROR(transport_.Test(receive, &over));
      line->receiving = !over;
      if (over) {
        line->silent = 0;
        line->failed |= line->in.release || (line->in.code != 0 && !line->in.complete);
      }
    }
    if (!line->receiving && !line->in.last) {
      line->receiving = true;
      PP_RETURN_IF_ERROR(transport_.Start(receive, &line->in, sizeof line->in));
    }
    // Rank 0 expects nothing more from a rank that has given its final word, until that rank takes
    // the answer.
    line->silent = line->heard() && !line->sending ? 0 : line->silent + lap;
    if (patience_ <= 0 || line->silent <= patience_) return {};
    const Status silent = Status::Failed(fmt::format("rank {}: no answer from rank {} for {} s",
                                                     transport_.rank(), line->peer, patience_));
    transport_.Blame(line->peer, silent);
    return silent;
  }

  // What this rank contributes.
  Note Word() const {
    Note note;
    note.last = true;
    note.released = ready_->released;
    note.complete = ready_->complete;
    note.memory = ThisHost();
    note.gpu = ready_->gpu;
    SetStatus(ready_->status, &note);
    PP_CHECK(ready_->items.size() <= kMostItems);
    for (size_t i = 0; i < ready_->items.size(); ++i) note.digests[i] = ready_->items[i].digest;
    return note;
  }

  // The result of all ranks' words.
  Note Answer() const {
    Note answer = Word();
    std::vector<const Note*> words{&answer};
    for (const Line& line : lines_) words.push_back(&line.in);
    const bool released =
        std::any_of(words.begin(), words.end(), [](const Note* word) { return word->released; });
    auto failed = std::find_if(words.begin(), words.end(),
                               [](const Note* word) { return word->code != 0 && !word->released; });
    if (failed == words.end())
      failed = std::find_if(words.begin(), words.end(),
                            [](const Note* word) { return word->code != 0; });
    if (failed != words.end()) {
      SetStatus(StatusOf(**failed), &answer);
    } else {
      SetStatus(Compare(words), &answer);
    }
    answer.released = released;
    return answer;
  }

  Status Compare(const std::vector<const Note*>& words) const {
    for (size_t rank = 1; rank < words.size(); ++rank)
      for (size_t i = 0; i < ready_->items.size(); ++i)
        if (words[rank]->digests[i] != words[0]->digests[i])
          return Status::Invalid(fmt::format("{}: rank {} has a different one from rank 0 ({})",
                                             ready_->items[i].name, rank, ready_->items[i].right));
    for (size_t rank = 1; rank < words.size(); ++rank)
      for (size_t other = 0; other < rank; ++other)
        if (words[rank]->gpu != 0 && words[rank]->gpu == words[other]->gpu)
          return Status::Invalid(fmt::format(
              "--transport: ranks {} and {} have one GPU, where NCCL takes a single rank "
              "(shm or mpi, or a GPU for each rank)",
              other, rank));
    if (ready_->bytes.empty()) return {};
    std::vector<HostMemory> hosts;
    for (const Note* word : words) hosts.push_back(word->memory);
    return CheckMemory(hosts, ready_->bytes);
  }

  Transport& transport_;
  const double patience_;
  std::vector<Line> lines_;  // on rank 0 to all others, elsewhere to rank 0
  std::optional<Readiness> ready_;
  std::optional<Note> last_;  // this rank's final word
  AwakeClock clock_;
  bool releases_ = false;
  bool finished_ = false;
};

}  // namespace

Status Agree(Transport& transport, double patience, const AskReady& ready,
             const std::function<void()>& release) {
  PP_RETURN_IF_ERROR(transport.CheckUsable());
  auto agreement = std::make_shared<Agreement>(transport, patience);
  const Status status = agreement->Run(ready, release);
  if (!agreement->finished()) transport.Abandon(agreement);
  return status;
}

Status Agree(Transport& transport, double patience, Readiness ready) {
  return Agree(transport, patience, [&] { return std::optional(std::move(ready)); });
}

}  // namespace pp
