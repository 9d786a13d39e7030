// Prints the schema of Cluster API's runtime hooks as JSON, from the Go types of the module that the tests build.
//
// Cluster API publishes an OpenAPI document that it generates from the same types, but the document is not part of
// the module. The rules are those of that generator: names and types from the types themselves; a field is required
// unless it is omitted when empty, and the markers +required and +optional decide before that.
//
// Arguments: IMPORT_PATH=DIRECTORY of each package whose markers are read.
package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"

	"sigs.k8s.io/cluster-api/api/runtime/catalog"
	"sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"
)

type object = map[string]any

// Types that say how they are encoded, such as Time and IntOrString.
type described interface {
	OpenAPISchemaType() []string
	OpenAPISchemaFormat() string
}

var (
	definitions = object{}
	required    = map[string]bool{}     // IMPORT_PATH.Type.Field: the marker of the field
	values      = map[string][]string{} // IMPORT_PATH.Type: the constants of a string type
)

func main() {
	for _, argument := range os.Args[1:] {
		path, directory, _ := strings.Cut(argument, "=")
		if err := readMarkers(path, directory); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	known := catalog.New()
	if err := v1alpha1.AddToCatalog(known); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	types, hooks := known.AllKnownTypes(), object{}
	for hook, descriptor := range known.AllKnownHooks() {
		request, response := descriptor.Request, descriptor.Response
		hooks[hook.Hook] = object{
			"path":       catalog.GVHToPath(hook, ""),
			"apiVersion": request.GroupVersion().String(),
			"request":    object{"kind": request.Kind, "schema": schemaOf(types[request])},
			"response":   object{"kind": response.Kind, "schema": schemaOf(types[response])},
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(object{"hooks": hooks, "definitions": definitions}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func schemaOf(t reflect.Type) object {
	if t.Kind() == reflect.Pointer {
		return schemaOf(t.Elem())
	}
	if it, ok := reflect.New(t).Interface().(described); ok {
		switch types := it.OpenAPISchemaType(); {
		case it.OpenAPISchemaFormat() == "int-or-string":
			return object{"type": []string{"integer", "string"}}
		case len(types) == 0:
			return object{}
		default:
			return object{"type": types}
		}
	}
	switch t.Kind() {
	case reflect.String:
		schema := object{"type": []string{"string"}}
		if found := values[nameOf(t)]; found != nil {
			schema["enum"] = found
		}
		return schema
	case reflect.Bool:
		return object{"type": []string{"boolean"}}
	case reflect.Int32:
		return object{"type": []string{"integer"}, "format": "int32"}
	case reflect.Int64:
		return object{"type": []string{"integer"}, "format": "int64"}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return object{"type": []string{"string"}}
		}
		return object{"type": []string{"array"}, "items": schemaOf(t.Elem())}
	case reflect.Map:
		return object{"type": []string{"object"}, "additionalProperties": schemaOf(t.Elem())}
	case reflect.Struct:
		name := nameOf(t)
		if _, done := definitions[name]; !done {
			definitions[name] = nil // it may refer to itself
			definitions[name] = structOf(t)
		}
		return object{"$ref": name}
	default:
		panic(fmt.Sprintf("no schema for %s", t))
	}
}

func structOf(t reflect.Type) object {
	properties, needed := object{}, []string{}
	addFields(t, properties, &needed)
	return object{
		"type":                 []string{"object"},
		"properties":           properties,
		"required":             needed,
		"additionalProperties": false,
	}
}

func addFields(t reflect.Type, properties object, needed *[]string) {
	for i := range t.NumField() {
		field := t.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "-" || !field.IsExported():
		case field.Anonymous && name == "":
			addFields(field.Type, properties, needed)
		default:
			properties[name] = schemaOf(field.Type)
			needs, marked := required[nameOf(t)+"."+field.Name]
			if !marked {
				needs = !strings.Contains(options, "omit")
			}
			if needs {
				*needed = append(*needed, name)
			}
		}
	}
}

func nameOf(t reflect.Type) string {
	return t.PkgPath() + "." + t.Name()
}

// readMarkers reads what the types themselves do not tell: markers of fields, and the constants of string types.
func readMarkers(path, directory string) error {
	files, err := filepath.Glob(filepath.Join(directory, "*.go"))
	if err != nil {
		return err
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		for _, declaration := range parsed.Decls {
			if general, ok := declaration.(*ast.GenDecl); ok {
				for _, spec := range general.Specs {
					readSpec(path, spec)
				}
			}
		}
	}
	return nil
}

func readSpec(path string, spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.TypeSpec:
		if structure, ok := spec.Type.(*ast.StructType); ok {
			for _, field := range structure.Fields.List {
				for _, name := range field.Names {
					readMarker(path+"."+spec.Name.Name+"."+name.Name, field.Doc)
				}
			}
		}
	case *ast.ValueSpec:
		typed, ok := spec.Type.(*ast.Ident)
		if !ok || path != reflect.TypeOf(v1alpha1.CommonResponse{}).PkgPath() {
			return // elsewhere, constants need not be all values
		}
		for _, value := range spec.Values {
			if literal, ok := value.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				if text, err := strconv.Unquote(literal.Value); err == nil {
					name := path + "." + typed.Name
					values[name] = append(values[name], text)
				}
			}
		}
	}
}

func readMarker(name string, comments *ast.CommentGroup) {
	if comments == nil {
		return
	}
	for _, comment := range comments.List {
		switch strings.TrimSpace(strings.TrimPrefix(comment.Text, "//")) {
		case "+required":
			required[name] = true
		case "+optional":
			required[name] = false
		}
	}
}
