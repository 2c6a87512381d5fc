#include "server/store/progress.h"

namespace sft::server {

v1::Preference ToProto(const PreferenceFigures& figures) {
  v1::Preference proto;
  proto.set_rewards_chosen(figures.rewards_chosen);
  proto.set_rewards_rejected(figures.rewards_rejected);
  proto.set_rewards_accuracies(figures.rewards_accuracies);
  proto.set_logps_chosen(figures.logps_chosen);
  proto.set_logps_rejected(figures.logps_rejected);
  proto.set_kl(figures.kl);
  return proto;
}

PreferenceFigures FromProto(const v1::Preference& proto) {
  return {.rewards_chosen = static_cast<float>(proto.rewards_chosen()),
          .rewards_rejected = static_cast<float>(proto.rewards_rejected()),
          .rewards_accuracies = static_cast<float>(proto.rewards_accuracies()),
          .logps_chosen = static_cast<float>(proto.logps_chosen()),
          .logps_rejected = static_cast<float>(proto.logps_rejected()),
          .kl = static_cast<float>(proto.kl())};
}

v1::AxisTraffic ToProto(const AxisTraffic& traffic) {
  v1::AxisTraffic proto;
  proto.set_axis(traffic.axis);
  proto.set_exposed_share(traffic.exposed_share);
  proto.set_gigabytes_per_second(traffic.gigabytes_per_second);
  return proto;
}

AxisTraffic FromProto(const v1::AxisTraffic& proto) {
  return {.axis = proto.axis(),
          .exposed_share = proto.exposed_share(),
          .gigabytes_per_second = proto.gigabytes_per_second()};
}

v1::Progress ToProto(const Progress& progress) {
  v1::Progress proto;
  proto.set_step(progress.step);
  proto.set_total_steps(progress.total_steps);
  proto.set_loss(progress.loss);
  proto.set_tokens_per_second(progress.tokens_per_second);
  proto.set_gpu_memory_bytes(progress.gpu_memory_bytes);
  proto.set_eta_seconds(progress.eta_seconds);
  proto.set_val_loss(progress.val_loss);
  proto.set_has_val_loss(progress.has_val_loss);
  proto.set_phase(progress.phase);
  proto.set_mfu(progress.mfu);
  proto.set_trainable_parameters(progress.trainable_parameters);
  proto.set_total_parameters(progress.total_parameters);
  proto.set_of_limit(progress.of_limit);
  if (progress.preference) *proto.mutable_preference() = ToProto(*progress.preference);
  for (const auto& [name, value] : progress.values) {
    v1::NamedValue& named = *proto.add_values();
    named.set_name(name);
    named.set_value(value);
  }
  for (const RankProgress& each : progress.ranks) {
    v1::RankProgress& rank = *proto.add_ranks();
    rank.set_rank(each.rank);
    rank.set_step(each.step);
    rank.set_gpu_memory_bytes(each.gpu_memory_bytes);
  }
  for (const AxisTraffic& each : progress.traffic) *proto.add_traffic() = ToProto(each);
  return proto;
}

Progress FromProto(const v1::Progress& proto) {
  Progress progress;
  progress.step = proto.step();
  progress.total_steps = proto.total_steps();
  progress.loss = proto.loss();
  progress.tokens_per_second = proto.tokens_per_second();
  progress.gpu_memory_bytes = proto.gpu_memory_bytes();
  progress.eta_seconds = proto.eta_seconds();
  progress.val_loss = proto.val_loss();
  progress.has_val_loss = proto.has_val_loss();
  progress.phase = proto.phase();
  progress.mfu = proto.mfu();
  progress.trainable_parameters = proto.trainable_parameters();
  progress.total_parameters = proto.total_parameters();
  progress.of_limit = proto.of_limit();
  if (proto.has_preference()) progress.preference = FromProto(proto.preference());
  for (const v1::NamedValue& value : proto.values()) {
    progress.values.emplace_back(value.name(), value.value());
  }
  for (const v1::RankProgress& each : proto.ranks()) {
    progress.ranks.push_back({each.rank(), each.step(), each.gpu_memory_bytes()});
  }
  for (const v1::AxisTraffic& each : proto.traffic()) progress.traffic.push_back(FromProto(each));
  return progress;
}

namespace store {

std::string ProgressColumn(const Progress& progress) {
  return ToProto(progress).SerializeAsString();
}

Progress ParseProgress(const std::string& column) {
  v1::Progress proto;
  return proto.ParseFromString(column) ? FromProto(proto) : Progress();
}

}  // namespace store
}  // namespace sft::server
