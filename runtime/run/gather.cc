#include "runtime/run/gather.h"

#include <cmath>

#include "runtime/comm/clock.h"
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

// What to add to the peer's clock, from the fastest of a few round trips. Ranks of one machine
// share a clock, and an offset within a round trip's error counts as none.
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

template <typename T>
Status SendAll(Transport& transport, std::vector<T>& list) {
  PP_RETURN_IF_ERROR(Send(transport, 0, static_cast<int64_t>(list.size())));
  return Transfer(transport, {Way::kSend, Channel::kControl, 0}, list.data(),
                  static_cast<int64_t>(list.size() * sizeof(T)), kSeconds);
}

// Appends a list to the elements that are already there.
template <typename T>
Status TakeAll(Transport& transport, int peer, std::vector<T>* list) {
  int64_t count = 0;
  PP_RETURN_IF_ERROR(Receive(transport, peer, &count));
  const size_t before = list->size();
  list->resize(before + count);
  return Transfer(transport, {Way::kRecv, Channel::kControl, peer}, list->data() + before,
                  count * static_cast<int64_t>(sizeof(T)), kSeconds);
}

Status TakeFrom(Transport& transport, int peer, std::vector<TimeSpent>* time,
                std::vector<Event>* events, std::vector<ValueRecord>* records) {
  double offset = 0;
  PP_RETURN_IF_ERROR(MeasureOffset(transport, peer, &offset));
  TimeSpent theirs;
  PP_RETURN_IF_ERROR(Receive(transport, peer, &theirs));
  time->push_back(theirs);
  PP_RETURN_IF_ERROR(TakeAll(transport, peer, records));
  const size_t before = events->size();
  PP_RETURN_IF_ERROR(TakeAll(transport, peer, events));
  for (size_t i = before; i < events->size(); ++i) (*events)[i].start += offset;
  return {};
}

}  // namespace

Status GatherReports(Transport& transport, std::vector<TimeSpent>* time, std::vector<Event>* events,
                     std::vector<ValueRecord>* records, bool* good) {
  if (transport.rank() != 0) {
    PP_RETURN_IF_ERROR(AnswerPings(transport));
    PP_RETURN_IF_ERROR(Send(transport, 0, time->front()));
    PP_RETURN_IF_ERROR(SendAll(transport, *records));
    PP_RETURN_IF_ERROR(SendAll(transport, *events));
    return Receive(transport, 0, good, kTurnSeconds);
  }
  for (int peer = 1; peer < transport.ranks(); ++peer)
    PP_RETURN_IF_ERROR(TakeFrom(transport, peer, time, events, records));
  // Nobody leaves earlier: the ranks have little time to end together (Settle).
  for (int peer = 1; peer < transport.ranks(); ++peer)
    PP_RETURN_IF_ERROR(Send(transport, peer, *good));
  return {};
}

}  // namespace pp
