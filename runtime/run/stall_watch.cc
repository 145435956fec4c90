#include "runtime/run/stall_watch.h"

#include <fmt/format.h>

namespace pp {

void StallWatch::Heartbeat(int rank, int64_t executed, const char* text) {
  Seen& seen = seen_[rank];
  if (executed != seen.executed) {
    quiet_ = 0;
    for (Seen& other : seen_) other.answers = false;
  }
  seen = {executed, true, false, text};
}

bool StallWatch::Tick(double seconds) {
  quiet_ += seconds;
  return seconds_ > 0 && quiet_ >= seconds_;
}

std::string StallWatch::Text() const {
  std::string text = fmt::format("no progress for {:g} s", seconds_);
  for (size_t rank = 0; rank < seen_.size(); ++rank) {
    text += fmt::format("{} rank {} ", rank == 0 ? ":" : ";", rank);
    if (seen_[rank].finished) {
      text += "has finished";
    } else {
      text += seen_[rank].answers ? fmt::format("at '{}'", seen_[rank].text) : "does not answer";
    }
  }
  return text;
}

}  // namespace pp
