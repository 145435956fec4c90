#include "runtime/run/gather.h"

#include <cmath>

#include "runtime/comm/clock.h"
#include "runtime/plan/lanes.h"

namespace pp {
namespace {

constexpr int kPings = 9;

template <typename T>
Status Send(Exchange& exchange, int peer, const T& value) {
  return exchange.Send(peer, &value, sizeof value);
}

template <typename T>
Status Receive(Exchange& exchange, int peer, T* value) {
  return exchange.Receive(peer, value, sizeof *value);
}

// What to add to the peer's clock, from the fastest of a few round trips. Ranks of one machine
// share a clock, and an offset within a round trip's error counts as none.
Status MeasureOffset(Exchange& exchange, int peer, double* offset) {
  double best = INFINITY;
  for (int i = 0; i < kPings; ++i) {
    const double begin = SteadySeconds();
    double there = 0;
    PP_RETURN_IF_ERROR(Send(exchange, peer, begin));
    PP_RETURN_IF_ERROR(Receive(exchange, peer, &there));
    const double end = SteadySeconds();
    if (end - begin >= best) continue;
    best = end - begin;
    *offset = (begin + end) / 2 - there;
  }
  if (std::abs(*offset) < best) *offset = 0;
  return {};
}

Status AnswerPings(Exchange& exchange) {
  for (int i = 0; i < kPings; ++i) {
    double begin = 0;
    PP_RETURN_IF_ERROR(Receive(exchange, 0, &begin));
    PP_RETURN_IF_ERROR(Send(exchange, 0, SteadySeconds()));
  }
  return {};
}

template <typename T>
Status SendAll(Exchange& exchange, std::vector<T>& list) {
  PP_RETURN_IF_ERROR(Send(exchange, 0, static_cast<int64_t>(list.size())));
  return exchange.Send(0, list.data(), static_cast<int64_t>(list.size() * sizeof(T)));
}

// Appends a list to the elements that are already there.
template <typename T>
Status TakeAll(Exchange& exchange, int peer, std::vector<T>* list) {
  int64_t count = 0;
  PP_RETURN_IF_ERROR(Receive(exchange, peer, &count));
  const size_t before = list->size();
  list->resize(before + count);
  return exchange.Receive(peer, list->data() + before, count * static_cast<int64_t>(sizeof(T)));
}

Status TakeFrom(Exchange& exchange, int peer, std::vector<TimeSpent>* time,
                std::vector<Event>* events, std::vector<ValueRecord>* records) {
  double offset = 0;
  PP_RETURN_IF_ERROR(MeasureOffset(exchange, peer, &offset));
  TimeSpent theirs;
  PP_RETURN_IF_ERROR(Receive(exchange, peer, &theirs));
  time->push_back(theirs);
  PP_RETURN_IF_ERROR(TakeAll(exchange, peer, records));
  const size_t before = events->size();
  PP_RETURN_IF_ERROR(TakeAll(exchange, peer, events));
  for (size_t i = before; i < events->size(); ++i) (*events)[i].start += offset;
  return {};
}

}  // namespace

Status GatherReports(Exchange& exchange, std::vector<TimeSpent>* time, std::vector<Event>* events,
                     std::vector<ValueRecord>* records) {
  if (exchange.rank() != 0) {
    PP_RETURN_IF_ERROR(AnswerPings(exchange));
    PP_RETURN_IF_ERROR(Send(exchange, 0, time->front()));
    PP_RETURN_IF_ERROR(SendAll(exchange, *records));
    return SendAll(exchange, *events);
  }
  for (int peer = 1; peer < exchange.ranks(); ++peer)
    PP_RETURN_IF_ERROR(TakeFrom(exchange, peer, time, events, records));
  return {};
}

}  // namespace pp
