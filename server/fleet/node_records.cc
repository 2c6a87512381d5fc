#include "server/fleet/node_records.h"

#include "server/core/convert.h"
#include "server/gangs/node_checks.h"

namespace sft::server {

std::string BytesOf(const google::protobuf::RepeatedPtrField<v1::Slot>& slots) {
  std::string bytes;
  for (const v1::Slot& slot : slots) {
    slot.AppendToString(&bytes);
    bytes += '\0';
  }
  return bytes;
}

std::string SlotsKey(const google::protobuf::RepeatedPtrField<v1::Slot>& slots) {
  v1::Observed key;
  for (const v1::Slot& slot : slots) {
    v1::Slot* copy = key.add_slots();
    *copy = slot;
    copy->clear_memory_used_bytes();
    copy->clear_utilization_percent();
    copy->clear_power_watts();
    copy->clear_temperature_celsius();
    copy->clear_job();
  }
  return key.SerializeAsString();
}

std::string AttemptsKey(const google::protobuf::RepeatedPtrField<v1::AttemptStatus>& attempts) {
  v1::Observed key;
  for (const v1::AttemptStatus& attempt : attempts) {
    v1::AttemptStatus* copy = key.add_attempts();
    *copy = attempt;
    copy->clear_progress();
  }
  return key.SerializeAsString();
}

std::string ModelsKey(const google::protobuf::RepeatedPtrField<v1::Model>& models) {
  v1::Observed key;
  *key.mutable_models() = models;
  return key.SerializeAsString();
}

std::vector<GpuReading> GpuReadings(const google::protobuf::RepeatedPtrField<v1::Slot>& slots) {
  std::vector<GpuReading> readings;
  for (const v1::Slot& slot : slots) {
    const bool reports = slot.memory_used_bytes() > 0 || slot.utilization_percent() > 0 ||
                         slot.power_watts() > 0 || slot.temperature_celsius() > 0;
    if (!reports) continue;
    readings.push_back({slot.index(), slot.memory_used_bytes(),
                        static_cast<float>(slot.utilization_percent()), slot.power_watts(),
                        slot.temperature_celsius()});
  }
  return readings;
}

std::vector<SlotRecord> SlotRecords(const google::protobuf::RepeatedPtrField<v1::Slot>& slots,
                                    const std::string& node) {
  std::vector<SlotRecord> records;
  for (const v1::Slot& slot : slots) {
    records.push_back(FromProto(slot, node));
    records.back().health_reason = BoundedText(slot.health_reason());
  }
  return records;
}

std::vector<ModelRecord> ModelRecords(const google::protobuf::RepeatedPtrField<v1::Model>& models,
                                      const std::string& node) {
  std::vector<ModelRecord> records;
  for (const v1::Model& model : models) {
    records.push_back(FromProto(model, node));
    records.back().problem = BoundedText(model.problem());
  }
  return records;
}

}  // namespace sft::server
