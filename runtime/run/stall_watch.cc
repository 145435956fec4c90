#include "runtime/run/stall_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace pp {

void StallWatch::Heartbeat(int rank, Sign sign) {
  Seen& seen = seen_[rank];
  if (sign.progress != seen.sign.progress) {
    quiet_ = 0;
    for (Seen& other : seen_) other.answers = false;
  }
  if (sign.progress != seen.sign.progress || sign.text != seen.sign.text) {
    seen.in_file = 0;
    seen.told = false;
  }
  seen.sign = std::move(sign);
  seen.answers = true;
  seen.finished = false;
  seen.silent = 0;
}

bool StallWatch::Tick(double seconds) {
  quiet_ += seconds;
  bool waits_for_disk = false;
  for (Seen& seen : seen_) {
    seen.silent += seconds;
    if (!seen.sign.in_file || seen.finished) continue;
    seen.in_file += seconds;
    waits_for_disk |= seen.silent < seconds_;
  }
  return seconds_ > 0 && quiet_ >= seconds_ && !waits_for_disk;
}

std::string StallWatch::TakeSlowFile() {
  for (size_t rank = 0; rank < seen_.size(); ++rank) {
    Seen& seen = seen_[rank];
    if (seconds_ <= 0 || seen.in_file < seconds_ || std::exchange(seen.told, true)) continue;
    return fmt::format("rank {} has waited {:g} s for {}", rank, seconds_, seen.sign.text);
  }
  return "";
}

std::string StallWatch::Text() const {
  std::string text = fmt::format("no progress for {:g} s", seconds_);
  for (size_t rank = 0; rank < seen_.size(); ++rank) {
    const Seen& seen = seen_[rank];
    text += fmt::format("{} rank {} ", rank == 0 ? ":" : ";", rank);
    if (seen.finished) {
      text += "has finished";
      continue;
    }
    if (!seen.sign.process.empty()) text += fmt::format("({}) ", seen.sign.process);
    if (!seen.answers) {
      text += "does not answer";
      continue;
    }
    text += fmt::format("at '{}'", seen.sign.text);
    if (seen.sign.step > 0) text += fmt::format(" of step {}", seen.sign.step);
  }
  return text;
}

}  // namespace pp
