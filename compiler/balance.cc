#include "compiler/balance.h"

#include <algorithm>
#include <queue>
#include <tuple>

#include "schema/model/families.h"

namespace pp {

std::vector<int> BalanceLayers(const Program& program, const ModelConfig& model,
                               int sequence_length) {
  const ModelTable table = TableOf(model);
  const auto cost = [&](const std::vector<Operator>& operators) {
    double sum = 0;
    for (const Operator& op : operators) sum += MultiplyAdds(op, sequence_length);
    return sum;
  };
  const double layer = cost(table.layer), head = cost(table.last);
  std::vector<int> layers(program.stages, 0);
  std::vector<double> of_stage(program.stages, 0), of_device(program.devices, 0);
  const auto add = [&](int stage, double cost) {
    of_stage[stage] += cost;
    for (const Pipe& pipe : program.pipes) of_device[pipe.device_of[stage]] += cost;
  };
  add(program.stages - 1, head);

  // Assigns one layer after the other to the stage that leaves its devices with the least work; of
  // equals, to the stage with the least work itself, then to the first. The work a stage would lead
  // to only grows, so an entry in the queue may be out of date, but is never too far back.
  using Place = std::tuple<double, double, int>;
  const auto place = [&](int stage) {
    double most = 0;
    for (const Pipe& pipe : program.pipes) most = std::max(most, of_device[pipe.device_of[stage]]);
    return Place(most, of_stage[stage], stage);
  };
  std::priority_queue<Place, std::vector<Place>, std::greater<>> queue;
  for (int stage = 0; stage < program.stages; ++stage) queue.push(place(stage));
  for (int left = model.layers; left > 0;) {
    const Place first = queue.top();
    const int stage = std::get<int>(first);
    queue.pop();
    if (place(stage) == first) {
      add(stage, layer);
      ++layers[stage];
      --left;
    }
    queue.push(place(stage));
  }
  return layers;
}

}  // namespace pp
