#include "server/door/fields.h"

namespace sft::server {

std::string StringField(const google::protobuf::Message& message, const char* name) {
  const auto* field = message.GetDescriptor()->FindFieldByName(name);
  if (field == nullptr || field->is_repeated() ||
      field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_STRING) {
    return "";
  }
  return message.GetReflection()->GetString(message, field);
}

bool ChangesNothing(const google::protobuf::Message& request) {
  for (const char* name : {"validate_only", "dry_run"}) {
    const auto* field = request.GetDescriptor()->FindFieldByName(name);
    if (field != nullptr && request.GetReflection()->GetBool(request, field)) return true;
  }
  return false;
}

}  // namespace sft::server
