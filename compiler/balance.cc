#include "compiler/balance.h"

#include <algorithm>
#include <queue>
#include <tuple>

#include "schema/model/families.h"

namespace pp {

Result<LayerCosts> LayerCostsOf(const Job& job, const PriceSource& prices) {
  if (!prices.given()) {
    const ModelTable table = TableOf(job);
    const auto cost = [&](const std::vector<Operator>& operators) {
      double sum = 0;
      for (const Operator& op : operators)
        sum += MultiplyAdds(op, job.attention_length()) + AdapterMultiplyAdds(op);
      return sum;
    };
    return LayerCosts{0, cost(table.layer), cost(table.last)};
  }
  // A pipeline of three, in which the first and the last have no layer.
  Program program;
  program.devices = program.stages = 3;
  program.microbatches = 1;
  program.pipes = {{{0, 1, 2}}};
  program.pipe_of = {0};
  program.job = job;
  program.job->layers_per_stage = {0, job.model.layers, 0};
  const auto costs = CostsOn(prices, program);
  PP_RETURN_IF_ERROR(costs.status());
  const auto both = [&](int stage) { return At(costs->f, stage) + At(costs->b, stage); };
  return LayerCosts{both(0), both(1) / job.model.layers, both(2)};
}

std::vector<int> BalanceLayers(const Program& program, int all, const LayerCosts& costs) {
  std::vector<int> layers(program.stages, 0);
  std::vector<double> of_stage(program.stages, 0), of_device(program.devices, 0);
  const auto add = [&](int stage, double cost) {
    of_stage[stage] += cost;
    for (const Pipe& pipe : program.pipes) of_device[pipe.device_of[stage]] += cost;
  };
  add(0, costs.first);
  add(program.stages - 1, costs.last);

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
  for (int left = all; left > 0;) {
    const Place first = queue.top();
    const int stage = std::get<int>(first);
    queue.pop();
    if (place(stage) == first) {
      add(stage, costs.layer);
      ++layers[stage];
      --left;
    }
    queue.push(place(stage));
  }
  return layers;
}

}  // namespace pp
