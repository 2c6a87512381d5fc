#include "server/door/known_values.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/base/mutex.h"

namespace sft::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Reflection;

bool HoldsEnum(const Descriptor& type, std::set<const Descriptor*>& seen) {
  if (!seen.insert(&type).second) return false;
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.enum_type() != nullptr) return true;
    if (field.message_type() != nullptr && HoldsEnum(*field.message_type(), seen)) return true;
  }
  return false;
}

// Most messages hold no enum, and large ones are not walked for nothing.
bool MayHoldEnum(const Descriptor& type) {
  static Mutex mutex;
  static std::map<const Descriptor*, bool> known;
  const MutexLock lock(mutex);
  const auto found = known.find(&type);
  if (found != known.end()) return found->second;
  std::set<const Descriptor*> seen;
  return known[&type] = HoldsEnum(type, seen);
}

absl::Status CheckValue(const FieldDescriptor& field, const std::string& name, int value) {
  const EnumDescriptor& type = *field.enum_type();
  const bool unspecified = field.is_repeated() && value == 0;
  if (type.FindValueByNumber(value) != nullptr && !unspecified) return absl::OkStatus();
  std::vector<std::string> names;
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() != 0) names.push_back(type.value(i)->name());
  }
  return InvalidArgument(fmt::format("{}: {} is no value that this server knows; there are {}",
                                     name, value, fmt::join(names, ", ")));
}

absl::Status Walk(const google::protobuf::Message& message, const std::string& prefix) {
  if (!MayHoldEnum(*message.GetDescriptor())) return absl::OkStatus();
  const Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> set;
  reflection.ListFields(message, &set);
  for (const FieldDescriptor* field : set) {
    const std::string name = prefix + field->name();
    const int size = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < size; ++i) {
      if (field->enum_type() != nullptr) {
        SFT_RETURN_IF_ERROR(CheckValue(*field, name,
                                       field->is_repeated()
                                           ? reflection.GetRepeatedEnumValue(message, field, i)
                                           : reflection.GetEnumValue(message, field)));
      } else if (field->message_type() != nullptr) {
        SFT_RETURN_IF_ERROR(Walk(field->is_repeated()
                                     ? reflection.GetRepeatedMessage(message, field, i)
                                     : reflection.GetMessage(message, field),
                                 name + "."));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckKnownValues(const google::protobuf::Message& request) {
  return Walk(request, "");
}

}  // namespace sft::server
