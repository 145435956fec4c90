#include "runtime/run/gather.h"

#include <cmath>

#include "runtime/plan/lanes.h"

namespace pp {
namespace {

// For one transfer; for a rank's turn, which comes after those of the ranks before it.
constexpr double kSeconds = 60, kTurnSeconds = 600;
constexpr int kPings = 9;

template <typename T>
Status Send(Transport& transport, int peer, const T& value) {
  T copy = value;
  return Transfer(transport, {Way::kSend, Channel::kControl, peer}, &copy, sizeof copy, kSeconds);
}

template <typename T>
Status Receive(Transport& transport, int peer, T* value, double seconds = kSeconds) {
  return Transfer(transport, {Way::kRecv, Channel::kControl, peer}, value, sizeof *value, seconds);
}

// What to add to the peer's clock, from the fastest of a few round trips. Ranks of one
// machine share a clock, and what is within a round trip's error counts as that.
Status MeasureOffset(Transport& transport, int peer, double* offset) {
  double best = INFINITY;
  for (int i = 0; i < kPings; ++i) {
    const double begin = SteadySeconds();
    double there = 0;
    PP_RETURN_IF_ERROR(Send(transport, peer, begin));
    PP_RETURN_IF_ERROR(Receive(transport, peer, &there));
    const double end = SteadySeconds();
    if (end - begin >= best) continue;
    best = end - begin;
    *offset = (begin + end) / 2 - there;
  }
  if (std::abs(*offset) < best) *offset = 0;
  return {};
}

Status AnswerPings(Transport& transport) {
  for (int i = 0; i < kPings; ++i) {
    double begin = 0;
    PP_RETURN_IF_ERROR(Receive(transport, 0, &begin, i == 0 ? kTurnSeconds : kSeconds));
    PP_RETURN_IF_ERROR(Send(transport, 0, SteadySeconds()));
  }
  return {};
}

Status TakeFrom(Transport& transport, int peer, std::vector<TimeSpent>* time,
                std::vector<Event>* events) {
  double offset = 0;
  PP_RETURN_IF_ERROR(MeasureOffset(transport, peer, &offset));
  TimeSpent theirs;
  int64_t count = 0;
  PP_RETURN_IF_ERROR(Receive(transport, peer, &theirs));
  PP_RETURN_IF_ERROR(Receive(transport, peer, &count));
  time->push_back(theirs);
  const size_t before = events->size();
  events->resize(before + count);
  PP_RETURN_IF_ERROR(Transfer(transport, {Way::kRecv, Channel::kControl, peer},
                              events->data() + before, count * sizeof(Event), kSeconds));
  for (size_t i = before; i < events->size(); ++i) (*events)[i].start += offset;
  return {};
}

}  // namespace

Status GatherReports(Transport& transport, std::vector<TimeSpent>* time, std::vector<Event>* events,
                     bool* good) {
  if (transport.rank() != 0) {
    PP_RETURN_IF_ERROR(AnswerPings(transport));
    PP_RETURN_IF_ERROR(Send(transport, 0, time->front()));
    PP_RETURN_IF_ERROR(Send(transport, 0, static_cast<int64_t>(events->size())));
    PP_RETURN_IF_ERROR(Transfer(transport, {Way::kSend, Channel::kControl, 0}, events->data(),
                                events->size() * sizeof(Event), kSeconds));
    return Receive(transport, 0, good, kTurnSeconds);
  }
  for (int peer = 1; peer < transport.ranks(); ++peer)
    PP_RETURN_IF_ERROR(TakeFrom(transport, peer, time, events));
  // Nobody leaves before: the ranks have little time to end together (Settle).
  for (int peer = 1; peer < transport.ranks(); ++peer)
    PP_RETURN_IF_ERROR(Send(transport, peer, *good));
  return {};
}

}  // namespace pp
